"""`inflight chat` at a terminal and from a pipe, against a real server whose engine repeats the prompt."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inflight_client import Client

from inflight.deploy.server.server import Server
from tests.client.support.leak_checks import idle
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.terminal import InteractiveTerminal, run_in_terminal
from tests.serving.metrics_page import page_when
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import CutAt

PROMPT = ">>> "


@pytest.fixture
def chat(runner_of: Callable[[str], CommandRunner]) -> CommandRunner:
    return runner_of("chat")


@pytest.fixture(scope="module")
def client(paced_server: Server) -> Iterator[Client]:
    with Client(paced_server.grpc_address) as client:
        yield client


def asked(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_each_line_of_a_pipe_is_a_message_of_one_conversation(
    chat: CommandRunner, paced_server: Server, client: Client
) -> None:
    first = client.generate([asked("tea?")], max_tokens=5).text
    talk = [asked("tea?"), {"role": "assistant", "content": first}, asked("/reset")]
    second = client.generate(talk, max_tokens=5).text
    arguments = ("--max-tokens", "5", "--server", paced_server.grpc_address)
    done = chat(*arguments, stdin=b"tea?\n\n/reset\n")
    assert done.err == ""
    assert (done.code, done.out) == (0, f"{first}\n{second}\n")
    answers = chat(*arguments, "--json", stdin=b"tea?\n/reset").objects
    assert [answer["text"] for answer in answers] == [first, second]
    assert [answer["usage"]["output_tokens"] for answer in answers] == [5, 5]
    assert all(answer["timings"]["total"] > 0 for answer in answers)


def test_the_systems_message_comes_before_all_else(chat: CommandRunner, paced_server: Server, client: Client) -> None:
    system = {"role": "system", "content": "be brief"}
    text = client.generate([system, asked("tea?")], max_tokens=9).text
    arguments = ("--system", "be brief", "--max-tokens", "9", "--server", paced_server.grpc_address)
    assert chat(*arguments, stdin=b"tea?\n").out == text + "\n"


@pytest.mark.parametrize("stdin", [b"tea?\n", b"tea \xff\n"])
def test_the_first_failure_ends_a_pipe(chat: CommandRunner, stdin: bytes) -> None:
    done = chat("--server", "127.0.0.1:1", stdin=stdin + b"more\n")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: ")
    assert done.err.count("\n") == 1


def at_chat(address: str, folder: Path, *arguments: str) -> Iterator[InteractiveTerminal]:
    with run_in_terminal("chat", "--server", address, *arguments, XDG_STATE_HOME=str(folder)) as terminal:
        terminal.wait_for(PROMPT)
        yield terminal


def test_a_conversation_at_a_terminal(paced_server: Server, client: Client, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    for terminal in at_chat(paced_server.grpc_address, tmp_path, "--max-tokens", "6"):
        terminal.type("tea?\n")
        first = client.generate([asked("tea?")], max_tokens=6).text
        assert first in terminal.wait_for("[6 tokens in ")
        assert " tokens/s" in terminal.wait_for("ended by length]")
        for line, answer in (
            ("/retry", "ended by length]"),
            ("/system be brief", "System message: be brief"),
            ("/nothing", "Unknown command /nothing; /help lists the commands."),
            (f"/save {saved}", f"Saved to {saved}. The conversation has 1 message from you."),
            ("/undo", "The conversation has 0 messages from you."),
            ("/undo", "The conversation has no messages."),
            (f"/load {saved}", f"Loaded {saved}. The conversation has 1 message from you."),
            ("/set top_p 2", "top_p is 2; it must be between 0 and 1"),
            ("/set max_tokens none", "max_tokens is None"),
            ("/set tea 2", "there is no option 'tea'"),
            ("/set seed 5", "max_tokens 6, temperature 0.0, seed 5"),
            ("/set seed none", "max_tokens 6, temperature 0.0"),
            ("/load /nowhere", "Error: /nowhere: No such file or directory"),
            ("/load /dev/zero", "Error: /dev/zero is not a regular file"),
            ("/save ~nobody-of-that-name/x", "Error: ~nobody-of-that-name/x: "),
            ("/help", "clear the conversation"),
            ("/?", "clear the conversation"),
            ('"""exit"""', "ended by length]"),  # within quotes no command
            ("/undo", "The conversation has 1 message from you."),
        ):
            terminal.wait_for(PROMPT)
            terminal.type(f"{line}\n")
            terminal.wait_for(answer)
        terminal.wait_for(PROMPT)
        terminal.type('"""/exit\n')  # within quotes no command
        terminal.wait_for("... ")
        terminal.type('two"""\n')
        terminal.wait_for("ended by length]")
        terminal.wait_for(PROMPT)
        terminal.type(f"/save {saved}\n")
        terminal.wait_for("2 messages from you.")
        terminal.wait_for(PROMPT)
        terminal.type("exit\n")
        assert terminal.read_rest()[0] == 0
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [message["content"] for message in messages[:4]] == ["be brief", "tea?", first, "/exit\ntwo"]
    assert messages[4]["content"] == client.generate(messages[:4], max_tokens=6).text
    history = tmp_path / "inflight" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert (lines[0], lines[-3]) == ("tea?", "/exit\ntwo")


@pytest.mark.parametrize("word", ["quit", "/bye"])
def test_every_usual_word_leaves(paced_server: Server, tmp_path: Path, word: str) -> None:
    for terminal in at_chat(paced_server.grpc_address, tmp_path, "--no-history"):
        terminal.type(f"{word}\n")
        assert terminal.read_rest()[0] == 0


def test_help_breaks_its_lines_between_words(paced_server: Server, tmp_path: Path) -> None:
    with run_in_terminal("chat", "--server", paced_server.grpc_address, "--no-history", COLUMNS="50") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/help\n")
        shown = terminal.wait_for("Ctrl-C")
    assert "\n/save FILE" in shown
    assert max(map(len, shown.splitlines())) <= 50


def test_ctrl_c_ends_an_answer_and_keeps_what_came(paced_server: Server, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    for terminal in at_chat(paced_server.grpc_address, tmp_path, "--max-tokens", "2000", "--no-history"):
        terminal.type("one two three four\n")
        terminal.wait_for("three")
        terminal.wait_for("three")  # the second one is the answer's
        terminal.type("\x03")
        terminal.wait_for("[stopped; the part received is kept]")
        page_when(paced_server, idle)
        terminal.wait_for(PROMPT)
        terminal.type(f"/save {saved}\n")
        terminal.wait_for("1 message from you.")
        terminal.wait_for(PROMPT)
        terminal.interrupt_the_prompt()
        terminal.wait_for("Press Ctrl-C again to exit")
        terminal.wait_for(PROMPT)
        terminal.interrupt_the_prompt()
        code, rest = terminal.read_rest()
        assert code == 0
        assert "Traceback" not in rest
    question, answer = json.loads(saved.read_text())
    assert question == asked("one two three four")
    assert "three" in answer["content"]
    assert not (tmp_path / "inflight").exists()


def test_after_an_interrupted_answer_ctrl_c_leaves(paced_server: Server, tmp_path: Path) -> None:
    """Asked is what was typed in an earlier conversation."""
    (tmp_path / "inflight").mkdir()
    (tmp_path / "inflight" / "chat_history").write_text('"one two three four"\n')
    for terminal in at_chat(paced_server.grpc_address, tmp_path, "--max-tokens", "2000"):
        terminal.type("\x10")  # Ctrl-P, as the arrow up
        terminal.wait_for("one two three four")
        terminal.type("\n")
        terminal.wait_for("three")
        terminal.type("\x03")
        terminal.wait_for(PROMPT)
        terminal.interrupt_the_prompt()
        assert terminal.read_rest()[0] == 0


def test_a_server_that_goes_away_is_one_sentence_and_the_conversation_stays(
    paced_server: Server, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    saved.write_text(json.dumps([asked("a"), {"role": "assistant", "content": "A"}]))
    with FaultyNetwork(paced_server.grpc_address) as network:
        for terminal in at_chat(network.address, tmp_path, "--max-tokens", "500"):
            terminal.type(f"/load {saved}\n")
            terminal.wait_for(PROMPT)
            terminal.type("one two three four\n")
            terminal.wait_for("three")
            terminal.wait_for("three")
            network.refuse()
            network.disturb(Faults(down=(CutAt(0),)))
            said = terminal.wait_for("[server_gone]")
            assert said.count("Error: ") == 1
            terminal.wait_for("The conversation is as it was before this message.")
            terminal.wait_for(PROMPT)
            terminal.type(f"/save {saved}\n")
            terminal.wait_for("1 message from you.")
            terminal.wait_for(PROMPT)
            terminal.type("\x04")
            assert terminal.read_rest()[0] == 0
    assert [message["content"] for message in json.loads(saved.read_text())] == ["a", "A"]


def test_a_conversation_too_long_is_told_and_dropping_makes_room(paced_server: Server, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    long = "tea and coffee " * 2000
    saved.write_text(json.dumps([asked(long), {"role": "assistant", "content": "A"}]))
    for terminal in at_chat(paced_server.grpc_address, tmp_path, "--max-tokens", "3"):
        terminal.type(f"/load {saved}\n")
        terminal.wait_for(PROMPT)
        terminal.type("more?\n")
        terminal.wait_for("[prompt_too_long]")
        terminal.wait_for("shorten it with /drop, /undo or /reset")
        terminal.type("/drop\n")
        terminal.wait_for("0 messages from you.")
        terminal.type("more?\n")
        terminal.wait_for("ended by length]")


def test_nobody_at_the_address_is_told_before_anything_is_typed(tmp_path: Path) -> None:
    with run_in_terminal("chat", "--server", "127.0.0.1:1", XDG_STATE_HOME=str(tmp_path)) as terminal:
        code, shown = terminal.read_rest()
    assert code == 1
    assert shown.startswith("Error: ")
    assert shown.count("\n") == 1
