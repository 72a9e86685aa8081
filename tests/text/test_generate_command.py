"""`simdformer generate`: a file of prompts, answered as each alone, and resumed after any end."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import simdformer as sf

PROMPTS = ["Once upon a time", "Tom", "Mia has a red kite.", "The big dog", "One day", "Lily"]


@pytest.fixture
def files(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{at}", "prompt": text} for at, text in enumerate(PROMPTS)]
    prompts.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return prompts, tmp_path / "answers.jsonl"


def answers_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_prompt_gets_what_it_gets_alone(command, files):
    prompts, out = files
    arguments = ["generate", "demo", prompts, "--out", out, "--max-new-tokens", 12]
    status, printed, err = command(*arguments, "--max-batch", 4)
    assert (status, printed) == (0, "")
    assert "6 prompts" in err
    model = sf.from_pretrained(sf.demo_path())
    found = {answer["id"]: answer["text"] for answer in answers_of(out)}
    assert found == {
        f"p{at}": model.generate(text, max_new_tokens=12) for at, text in enumerate(PROMPTS)
    }
    assert all(0 < answer["new_tokens"] <= 12 for answer in answers_of(out))
    before = out.read_bytes()
    assert command(*arguments)[2] == "6 of 6 answers are there already\n"
    assert out.read_bytes() == before


def test_a_draft_is_counted_and_changes_no_answer(command, files):
    prompts, out = files
    prompts.write_text(
        json.dumps("Tom has a red car. Mia has a blue car. Tom has a red car. Mia has") + "\n"
    )
    arguments = ["generate", "demo", prompts, "--max-new-tokens", 30, "--out"]
    assert "drafted" not in command(*arguments, out)[2]
    drafted = out.with_name("drafted.jsonl")
    assert re.search(
        r", \d+ of \d+ drafted tokens accep", command(*arguments, drafted, "--draft", "prompt")[2]
    )
    assert answers_of(drafted) == answers_of(out)


def test_lines_of_three_kinds(command, files):
    prompts, out = files
    prompts.write_text(
        json.dumps("Tom")
        + "\n"
        + json.dumps({"messages": [{"role": "user", "content": "hello"}]})
        + "\n"
        + json.dumps({"prompt": "Lily", "id": 7})
    )
    assert command("generate", "demo", prompts, "--out", out, "--max-new-tokens", 5)[0] == 0
    model = sf.from_pretrained(sf.demo_path())
    found = {answer["id"]: answer["text"] for answer in answers_of(out)}
    assert found == {
        1: model.generate("Tom", max_new_tokens=5),
        2: model.chat([{"role": "user", "content": "hello"}], 5),
        7: model.generate("Lily", max_new_tokens=5),
    }


def test_a_line_that_was_not_finished_is_written_anew(command, files):
    prompts, out = files
    arguments = ["generate", "demo", prompts, "--out", out, "--max-new-tokens", 9]
    command(*arguments)
    whole = answers_of(out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:11])
    status, _, err = command(*arguments)
    assert status == 0
    assert "2 of 6 answers are there already" in err
    by_id = {answer["id"]: answer for answer in answers_of(out)}
    assert len(answers_of(out)) == 6
    assert by_id == {answer["id"]: answer for answer in whole}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process as Unix does")
def test_a_run_that_is_killed_goes_on_where_it_stopped(files, rng):
    """With kill -9, at any time: in the end every answer is there once."""
    prompts, out = files
    lines = [{"id": at, "prompt": PROMPTS[at % 6]} for at in range(40)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    arguments = [sys.executable, "-m", "simdformer", "generate", "demo", prompts, "--out", out]
    arguments += ["--max-new-tokens", "60", "--max-batch", "3", "--threads", "1"]
    kills, grown = 0, 0
    while kills < 3:
        run = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        while run.poll() is None and (not out.exists() or out.stat().st_size <= grown):
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.05)))
        run.kill()
        run.wait()
        grown, kills = out.stat().st_size, kills + 1
    subprocess.run(arguments, check=True, stderr=subprocess.DEVNULL)
    assert sorted(answer["id"] for answer in answers_of(out)) == list(range(40))


BAD = {
    "not json": "line 2: found b'not json', needs JSON: a text in quotes",
    "[1]": "line 2: found [1], needs a text in quotes",
    '{"text": "a"}': "line 2: found {'text': 'a'}, needs a text in quotes",
    '{"prompt": "a", "id": [1]}': "line 2: found",
    '{"prompt": "a", "id": "p0"}': "line 2: the id 'p0' stands in line 1 too",
    json.dumps("long " * 500): "line 2: the prompt has 1502 tokens",
    '{"messages": []}': "line 2: chat: messages",
}


@pytest.mark.parametrize("line", list(BAD))
def test_a_bad_line_is_refused_before_the_work_begins(command, files, line):
    prompts, out = files
    prompts.write_text(json.dumps({"id": "p0", "prompt": "Tom"}) + "\n" + line + "\n")
    status, _, err = command("generate", "demo", prompts, "--out", out)
    assert status == 2
    assert f"{prompts}, {BAD[line]}" in err
    assert not out.exists() or out.read_bytes() == b""


def test_a_file_of_something_else_is_left_alone(command, files):
    prompts, out = files
    out.write_text("my diary\n")
    status, _, err = command("generate", "demo", prompts, "--out", out)
    assert status == 2
    assert f"{out}, line 1: found b'my diary', needs an answer as this command writes" in err
    assert out.read_text() == "my diary\n"


def test_two_runs_do_not_write_into_one_file(command, files):
    fcntl = pytest.importorskip("fcntl", reason="the system has no such locks")
    prompts, out = files
    with out.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        status, _, err = command("generate", "demo", prompts, "--out", out)
    assert status == 2
    assert f"{out}: another run is writing into it" in err
    assert os.path.getsize(out) == 0
