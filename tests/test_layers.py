"""What the layers of pyproject.toml do not say: no module imports itself by way of others, not even inside a function."""

import grimp


def test_there_is_no_cycle_of_imports() -> None:
    graph = grimp.build_graph("arquant")
    left = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"these import each other: {sorted(left)}"
