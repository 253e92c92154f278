"""What the pages for readers say is tried: examples run, tables hold, names exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nativelaunch
from tests.python.processes import TOKEN, alive, command_of, until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "DESIGN.md", "COMPARE.md")

# What the README calls train.py, where it does not show one.
STAND_IN = 'import os\nos.write(1, b"rank %s\\n" % os.environb[b"RANK"])\n'


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comment in the line before it: `<!-- what about -->`."""

    line: int
    heading: str
    language: str
    what: str
    about: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    fence = re.compile(
        r"(?:^<!-- (run by|not run:|file|same as) ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$",
        re.MULTILINE | re.DOTALL,
    )
    for found in fence.finditer(page):
        before = page[: found.start()]
        heading = re.findall(r"^##+ (.+)$", before, re.MULTILINE)[-1]
        what, about, language, text = found.groups()
        yield Block(before.count("\n") + 1, heading, language, what or "", about or "", text)


BLOCKS = list(blocks(README))


def marked(language: str, *what: str) -> list[object]:
    found = [block for block in BLOCKS if block.language == language and block.what in what]
    assert found, f"no {language} block in README.md"
    return [pytest.param(block, id=f"{block.heading}, line {block.line}") for block in found]


def code_spans(page: str) -> list[str]:
    """What stands between backticks in the prose."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def table(heading: str) -> list[list[str]]:
    """The rows below a heading, without the header."""
    section = re.split(r"^## ", README, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(heading + "\n")]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a folder with a `train.py`. What it starts is gone when it has ended."""
    (tmp_path / "train.py").write_text(STAND_IN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(STAND_IN)
    os.environ[TOKEN] = uuid.uuid4().hex
    yield Shell(tmp_path)
    until(lambda: not alive(), 3.0)
    left = {pid: command_of(pid) for pid in alive()}
    del os.environ[TOKEN]
    assert not left


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binary = nativelaunch.find_bin()
        # As in an active virtual environment; the command is the one that the package finds.
        commands = folder / "commands"
        commands.mkdir()
        (commands / "nativelaunch").symlink_to(binary)
        path = (str(commands), str(Path(sys.executable).parent), os.environ["PATH"])
        self.environ = os.environ | {
            "PATH": os.pathsep.join(path),
            "NATIVELAUNCH_BIN": binary,
            "PYTHON_EXEC": sys.executable,
        }
        for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED"):
            self.environ.pop(name, None)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )

    def files(self, heading: str) -> None:
        """Writes the files that a section shows."""
        for block in BLOCKS:
            if block.what == "file" and block.heading == heading:
                (self.folder / block.about).write_text(block.text)


@pytest.mark.parametrize("block", marked("console", ""))
def test_commands_print_what_the_readme_shows(shell: Shell, block: Block) -> None:
    shell.files(block.heading)
    steps: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    # One shell for all, so that `echo $?` asks for the status of the line before.
    mark = "---- next ----"
    script = "".join(f"{command}\nstatus=$?; echo '{mark}'; (exit $status)\n" for command, _ in steps)
    told = shell.run("sh", "-c", script).stdout.split(mark + "\n")[:-1]
    assert len(told) == len(steps)
    for (command, expected), output in zip(steps, told, strict=True):
        assert comparable(output.splitlines()) == comparable(expected), command


def comparable(lines: list[str]) -> list[str]:
    """Without what differs from run to run. Ranks print in any order; what we say comes last."""
    text = "\n".join(lines)
    for pattern, same in (
        (r"pid \d+", "pid N"),
        (r"host [^)]+\)", "host H)"),
        (r"after \d+\.\d s", "after N s"),
        (r'File ".*/', 'File "/'),
    ):
        text = re.sub(pattern, same, text)
    ours = re.compile("nativelaunch: ")
    split = next((index for index, line in enumerate(text.splitlines()) if ours.match(line)), None)
    ranks, last = text.splitlines()[:split], text.splitlines()[split:] if split is not None else []
    in_order = ranks if any(line.startswith("Traceback") for line in ranks) else sorted(ranks)
    return in_order + last


@pytest.mark.parametrize("block", marked("sh", ""))
def test_shell_examples_succeed(shell: Shell, block: Block) -> None:
    ended = shell.run("sh", "-e", "-c", block.text)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("block", marked("python", ""))
def test_python_examples_run(shell: Shell, block: Block) -> None:
    (shell.folder / "example.py").write_text(block.text)
    ended = shell.run(sys.executable, "-W", "error", "example.py")
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout


@pytest.mark.timeout(600)  # it compiles
@pytest.mark.parametrize("block", marked("rust", "same as"))
def test_rust_example_is_a_program_that_runs(shell: Shell, block: Block) -> None:
    file = ROOT / block.about
    shown = "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("//!"))
    assert shown.strip() == block.text.strip()
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not installed")
    build = [cargo, "build", "--quiet", "--locked", "--package", "nativelaunch-core", "--example", file.stem]
    told = subprocess.run(
        [*build, "--message-format", "json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (program,) = set(re.findall(r'"executable":"([^"]+)"', told.stdout))
    ended = shell.run(program)
    assert ended.returncode == 0, ended.stdout
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank}" for rank in range(4)]


def test_every_block_is_run_or_says_why_not() -> None:
    for block in BLOCKS:
        told = f"README.md, line {block.line}"
        if block.what == "run by":
            assert (ROOT / block.about).exists(), told
        elif block.what == "file":
            # A command of the same section runs it.
            commands = [b.text for b in BLOCKS if b.heading == block.heading and b.language == "console"]
            assert any(block.about in text for text in commands), told
        else:
            assert block.what == "not run:" or block.language in {"console", "python", "sh", "rust"}, told
            assert block.language != "rust" or block.what == "same as", told


def test_a_worker_finds_the_variables_of_the_table_and_no_others(shell: Shell) -> None:
    listed = {name for row in table("What a worker finds") for name in re.findall(r"`([A-Z_]+)`", row[0])}
    code = "import os; print(*sorted(os.environ)) if os.environ['RANK'] == '1' else None"
    (shell.folder / "train.py").write_text(code)
    ended = shell.run("nativelaunch", "-n", "2", "train.py")
    inherited = set(shell.environ) | {"LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"}
    stale = {name for name in shell.environ if name in listed}
    assert set(ended.stdout.split()) - (inherited - stale) == listed


def test_every_promise_names_a_test() -> None:
    rows = table("Promises")
    assert len(rows) == 9
    source = "\n".join(file.read_text() for file in ROOT.glob("tests/**/*.py"))
    for _, test in rows:
        assert re.search(rf"^ *(async )?def {test.strip('`')}\(", source, re.MULTILINE), test


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        if not re.match(r"https?://", target):
            assert not file or (ROOT / file).exists(), target
            assert not anchor or file or anchor in headings, target
    made = {"dist/", ".venv"}  # by the commands that the page speaks of
    file_or_folder = r"\.?[\w-]+(/[\w.-]+)*(/|\.(json|md|py|rs|sh|toml))"
    below_the_root = r"(rust|python|tests|examples|benches|tools)(/[\w.-]+)*"
    path = re.compile(f"{file_or_folder}|{below_the_root}")
    for span in code_spans(text):
        if path.fullmatch(span) and span not in made and span not in {"hello.py", "train.py"}:
            folders = ("", "rust/*/src/**/", "python/nativelaunch/**/")
            found = any(list(ROOT.glob(folder + span.rstrip("/"))) for folder in folders)
            assert found, span


@pytest.mark.parametrize("page", PAGES)
def test_options_and_targets_exist(shell: Shell, page: str) -> None:
    text = (ROOT / page).read_text()
    known = set(re.findall(r"--?[a-z][\w-]*", shell.run("nativelaunch", "--help").stdout)) | {"-h", "-V"}
    lines = code_spans(text) + [line for block in blocks(text) for line in block.text.splitlines()]
    for line in lines:
        if line.startswith("-"):
            assert line.split()[0] in known, line
        elif command := re.search(r"(?:^|\s)nativelaunch((?: -\S+| \d+(?= ))+)", line):
            options = [word.split("=")[0] for word in command[1].split() if word.startswith("-")]
            assert set(options) <= known, line
        if example := re.search(r"(examples/\w+\.py) (--[\w-]+)", line):
            assert example[2] in (ROOT / example[1]).read_text(), line
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in lines:
        if make := re.match(r"make ([a-z-]+)", line):
            assert make[1] in targets, line


def test_names_of_the_package_exist() -> None:
    import nativelaunch.environments
    import nativelaunch.launchers

    homes = (nativelaunch, nativelaunch.environments, nativelaunch.launchers)
    for span in code_spans(README):
        if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", span):
            assert any(hasattr(home, span) for home in homes), span
    for name in ("run", "start"):
        assert callable(getattr(nativelaunch, name))
    methods = re.search(r"the job has (.+?), which is", README, re.DOTALL)
    assert methods
    for name in re.findall(r"`(\w+)`", methods[1]):
        assert hasattr(nativelaunch.Job, name), name


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page: str) -> None:
    assert not [line for line in (ROOT / page).read_text().splitlines() if len(line) > 120]
