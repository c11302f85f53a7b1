"""The page of `arquant watch --web` in a real browser while a search runs. Skipped where there is no Chromium."""

import threading

import pytest

from arquant.commands.search import search
from arquant.reporting.live_server import LiveServer
from tests.reporting.test_browser import FLAGS, css, driver, pytestmark, webdriver  # noqa: F401 - fixtures
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier

wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
TRIALS = 6


@pytest.fixture
def served(tmp_path):
    with LiveServer(tmp_path / "run", 0, 0.2) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_page_follows_a_search(served, driver):  # noqa: F811
    """The third candidate waits until the page has shown two: what is seen was seen while the search ran."""
    seen, failed = threading.Event(), []

    def shown() -> int:
        return len(css(driver, "[data-chart=learning] svg.w circle.m"))

    def said(selector: str) -> str:
        """What the page says there now: it may be drawn anew at any moment, and elements of before be gone."""
        return driver.execute_script("return document.querySelector(arguments[0]).textContent", selector)

    def paced(status) -> None:
        if status.stage == "search" and status.done > 2.1 and not seen.is_set():
            seen.wait(60)

    def work() -> None:
        try:
            search(
                small_classifier(), image_set(20, 1, "search"), calibrate=image_set(96, 2, "calibrate"),
                certify=image_set(12, 3, "certify"), sigma=SIGMA, budget="bops<=3bit", out=served.run, strategy="random",
                trials=TRIALS, search_n=48, reference_n=160, n0=16, n=120, steps=2, final_steps=4, train_batch=32,
                shortlist=1, compiled=False, report=paced,
            )  # fmt: skip
        except BaseException as error:  # said below, in the thread that can fail
            failed.append(error)

    driver.get(served.url)
    assert said("#state") == "waiting for the run to begin"
    driver.get_log("browser")
    with quick_engines():
        thread = threading.Thread(target=work)
        thread.start()
        try:
            wait(driver, 60, ignored_exceptions=()).until(lambda _: failed or shown() >= 2)
            assert not failed
            state = said("#state")
            assert css(driver, "[data-chart=bits-0] svg.w rect.m"), "the bits of the best so far"
            assert "candidate 1" in said("#log")
        finally:
            seen.set()
            thread.join()
    assert not failed
    assert state == "searching"
    wait(driver, 30).until(lambda _: said("#state") == "finished")
    assert shown() >= TRIALS
    assert css(driver, "[data-chart=outcomes] svg.w rect.m")
    assert "12 of 12 images" in said("#content")
    assert driver.get_log("browser") == []
