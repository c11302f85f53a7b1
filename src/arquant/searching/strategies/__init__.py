"""Hold the strategies of arquant, one file each; `arquant.searching.method` names them."""
