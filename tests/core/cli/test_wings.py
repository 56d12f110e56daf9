"""Commands, pages and drawings of packages beside the core, where those are missing."""

import subprocess
import sys

import pytest

from sentiment.cli.main import main
from sentiment.wings import wing


def absent(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if the package and its modules were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]  # how an import is made to fail


def test_a_command_of_a_missing_package_names_it_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent(monkeypatch, "sentiment_tools")

    codes = [main(["loadtest", "--rate", "3"]), main(["settings"])]

    assert codes == [2, 0]
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "sentiment_tools" in said
    assert said.endswith(
        ": install sentiment-service again (pip install -e . in a checkout, or pip install --force-reinstall with its wheel)\n"
    )


def test_the_extra_server_serves_without_the_load_testers_and_completions_packages() -> None:
    absent = "import sys; sys.modules |= dict.fromkeys(('hdrh', 'shtab')); "
    script = (
        absent
        + "import sentiment.serving.app; from sentiment.cli.main import main; print(main(['settings']), main(['loadtest', '--rate', '3']))"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)

    assert (ran.stdout.splitlines()[-1], ran.stderr[:18]) == ("0 2", "error: module hdrh")


@pytest.mark.parametrize(("group", "name"), [("sentiment.pages", "viewer"), ("sentiment.views", "page")])
def test_a_missing_package_is_named_by_the_error(monkeypatch: pytest.MonkeyPatch, group: str, name: str) -> None:
    absent(monkeypatch, "sentiment_viewer")

    with pytest.raises(ModuleNotFoundError) as caught:
        wing(group, name)

    assert caught.value.name in ("sentiment_viewer", "sentiment_viewer.routes", "sentiment_viewer.page")


def test_what_no_package_offers_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="has no fly among"):
        wing("sentiment.commands", "fly")
