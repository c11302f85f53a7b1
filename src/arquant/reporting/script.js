var arquantBind=(function(){
var tip=document.getElementById('tip'),on=null;
function hide(){tip.style.display='none';if(on)on.classList.remove('on');on=null}
function show(mark){hide();on=mark;mark.classList.add('on');tip.textContent=mark.dataset.t;tip.style.display='block';
var b=mark.getBoundingClientRect(),w=tip.offsetWidth,h=tip.offsetHeight,x=Math.min(Math.max(6,b.left+b.width/2-w/2),innerWidth-w-6),y=b.top-h-8;
tip.style.left=x+'px';tip.style.top=(y<4?b.bottom+8:y)+'px'}
function marks(svg){return Array.prototype.filter.call(svg.querySelectorAll('.m'),function(m){return !m.parentNode.classList.contains('off')})}
function nearest(svg,e){var best=null,d=900;marks(svg).forEach(function(m){var b=m.getBoundingClientRect(),dx=Math.max(b.left-e.clientX,0,e.clientX-b.right),dy=Math.max(b.top-e.clientY,0,e.clientY-b.bottom),q=dx*dx+dy*dy;if(q<d){d=q;best=m}});return best}
function bind(root){
hide();
root.querySelectorAll('figure svg').forEach(function(svg){
svg.addEventListener('pointermove',function(e){var m=nearest(svg,e);m?show(m):hide()});
svg.addEventListener('pointerleave',hide);svg.addEventListener('blur',hide);
svg.addEventListener('keydown',function(e){var step={ArrowRight:1,ArrowLeft:-1}[e.key];if(e.key==='Escape')hide();if(!step)return;
var all=marks(svg),at=all.indexOf(on);if(all.length){show(all[at<0?(step>0?0:all.length-1):(at+step+all.length)%all.length]);e.preventDefault()}})});
root.querySelectorAll('[data-toggle]').forEach(function(b){b.addEventListener('click',function(){
var off=b.getAttribute('aria-pressed')==='true';b.setAttribute('aria-pressed',String(!off));hide();
b.closest('figure').querySelectorAll('g[data-s="'+b.dataset.toggle+'"]').forEach(function(g){g.classList.toggle('off',off)})})})}
addEventListener('scroll',function(){on&&on.ownerSVGElement===document.activeElement?show(on):hide()},{passive:true});
var before=[];addEventListener('beforeprint',function(){before=[];document.querySelectorAll('#asked details,#trust details,#claims details').forEach(function(d){before.push([d,d.open]);d.open=true})});
addEventListener('afterprint',function(){before.forEach(function(p){p[0].open=p[1]})});
bind(document);
return bind;
})();
