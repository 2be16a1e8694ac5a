"""The web page in Chromium: nothing that the user holds is lost, for any number of
jobs, width and colours.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.cluster.page.memory import memory_of
from oneflow.scheduler.cluster.page.plan import picture
from oneflow.scheduler.cluster.page.timeline import timeline
from oneflow.scheduler.compiler.pipeline import compile_graph
from tests.processes.browser import Browser
from tests.processes.test_scheduler_page import tokens, train
from tests.support.cluster import PATIENT, SchedulerProcess, table
from tests.support.simulated.daemon_peer import Client, FakeDaemon, run
from tests.unit.actors.programs import two_layers
from tests.unit.actors.test_tracing import cluster_of, recorded

pytestmark = pytest.mark.neighbour

SCREENS = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
AXE_VERSION = "4.10"
LIMITS = {"requests_per_s": 5000.0, "burst": 5000, "streams": 1024}
ROWS = "document.querySelectorAll('#jobs tr')"
REFRESHED = (
    "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/api/cluster')).length"
)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    options = {"allow_scripts": True, "ui": True, "tick_s": 0.1, "limits": LIMITS}
    found = SchedulerProcess(tmp_path, **options, table=table(PATIENT)).start()
    yield found
    found.kill()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as found:
        yield found


async def submit(scheduler: SchedulerProcess, count: int) -> None:
    async with Client(scheduler) as client:
        for number in range(count):
            await client.submit(f"job{number:03}", name=f"model {number}")


def log_in(
    browser: Browser, scheduler: SchedulerProcess, fragment: str = "", secret: str = ""
) -> None:
    browser.open(f"http://{scheduler.known['metrics_address']}/{fragment}")
    if browser.run("!sessionStorage.getItem('oneflow-token')"):
        browser.run(
            f"document.getElementById('token').value = {json.dumps(secret or scheduler.token())}"
        )
        browser.run("document.querySelector('#login button').click()")
    browser.until("!document.getElementById('content').hidden")


def refresh_twice(browser: Browser) -> None:
    """Two whole refreshes, of which at least one began after this call."""
    seen = browser.run(REFRESHED)
    browser.until(f"{REFRESHED} >= {seen} + 2")


@pytest.mark.parametrize("count", [0, 1, 20, 500])
def test_focus_selection_and_scroll_survive(
    scheduler: SchedulerProcess, browser: Browser, count: int
) -> None:
    run(submit(scheduler, count))
    for width, scheme in SCREENS:
        browser.screen(width, 900, scheme)
        browser.open("about:blank")
        log_in(browser, scheduler)
        browser.until(f"{ROWS}.length === {count}")
        wide = "document.documentElement.scrollWidth"
        assert browser.run(wide) <= width, "the page scrolls sideways"
        if not count:
            assert "oneflow job submit" in browser.run("document.body.innerText")
            assert (
                browser.run("getComputedStyle(document.getElementById('jobs-table')).display")
                == "none"
            )
            continue
        hold = f"""(() => {{
            const rows = {ROWS}, row = rows[Math.floor(rows.length / 2)];
            row.focus();
            getSelection().selectAllChildren(row.querySelector('small'));
            window.held = row;
            window.at = [scrollY, document.getElementById('list').scrollTop];
            return getSelection().toString().trim();
        }})()"""
        held = browser.run(hold)
        assert held.startswith("job")
        refresh_twice(browser)
        assert browser.run("document.activeElement === window.held && window.held.isConnected")
        assert browser.run("getSelection().toString().trim()") == held
        now = "[scrollY, document.getElementById('list').scrollTop]"
        assert browser.run(now) == browser.run("window.at")
    assert browser.problems() == []


def test_new_jobs_move_no_row_that_is_held(scheduler: SchedulerProcess, browser: Browser) -> None:
    run(submit(scheduler, 5))
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler)
    browser.until(f"{ROWS}.length === 5")
    browser.run(f"{ROWS}[2].focus()")
    held = browser.run("document.activeElement.dataset.job")
    run(submit(scheduler, 9))  # four new ones, which come first
    browser.until(f"{ROWS}.length === 9")
    assert browser.run("document.activeElement.dataset.job") == held
    names = browser.run(f"[...{ROWS}].map(row => row.dataset.job)")
    assert names == [f"job{number:03}" for number in reversed(range(9))]
    assert browser.problems() == []


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_row_is_chosen_by_keyboard(
    scheduler: SchedulerProcess, browser: Browser, key: str
) -> None:
    run(submit(scheduler, 3))
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler)
    browser.until(f"{ROWS}.length === 3")
    browser.run(f"{ROWS}[0].focus()")
    browser.press("ArrowDown")
    browser.press(key)
    browser.until("!document.getElementById('detail').hidden")
    assert browser.run("document.activeElement.dataset.job") == "job001"
    chosen = f"[...{ROWS}].map(row => row.getAttribute('aria-selected')).join()"
    assert browser.run(chosen) == "false,true,false"
    assert browser.run(f"[...{ROWS}].map(row => row.getAttribute('role')).join()") == "row,row,row"
    assert browser.run(f"[...{ROWS}].map(row => row.tabIndex).join()") == "-1,0,-1"
    assert browser.run("document.getElementById('title').textContent") == "model 1"
    assert browser.run("document.title").startswith("QUEUED model 1")


def test_a_tap_on_a_small_screen_leads_to_the_job(
    scheduler: SchedulerProcess, browser: Browser
) -> None:
    run(submit(scheduler, 20))
    browser.screen(360, 700, "light")
    log_in(browser, scheduler)
    browser.until(f"{ROWS}.length === 20")
    edges = f"new Set([...{ROWS}].map(row => row.getBoundingClientRect().left)).size"
    assert browser.run(edges) == 1  # one column
    browser.run(f"{ROWS}[0].click()")
    top = "document.getElementById('detail').getBoundingClientRect().top"
    browser.until(f"!document.getElementById('detail').hidden && {top} < 350 && {top} >= 0")


def test_a_large_screen_has_jobs_left_and_the_chosen_one_right(
    scheduler: SchedulerProcess, browser: Browser
) -> None:
    daemon = run(FakeDaemon(scheduler).attach())
    run(submit(scheduler, 20))
    browser.screen(1280, 900, "dark")
    log_in(browser, scheduler, "#job003")
    browser.until("!document.getElementById('detail').hidden")
    box = "document.getElementById('{}').getBoundingClientRect()"
    assert browser.run(box.format("list") + ".right") <= browser.run(box.format("detail") + ".left")
    browser.until("document.querySelector('#nodes .chip') !== null")
    assert 0 <= browser.run(box.format("nodes") + ".bottom") <= 900
    run(daemon.detach())


def test_nobody_is_asked_while_the_page_is_hidden(
    scheduler: SchedulerProcess, browser: Browser
) -> None:
    run(submit(scheduler, 1))
    log_in(browser, scheduler)
    browser.until(f"{ROWS}.length === 1")
    hide = """Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
              document.dispatchEvent(new Event('visibilitychange'))"""
    browser.run(hide % "true")
    browser.run("new Promise(done => setTimeout(done, 500))")  # what is under way comes in
    seen = browser.run(REFRESHED)
    browser.run("new Promise(done => setTimeout(done, 4500))")  # two refreshes would fit
    assert browser.run(REFRESHED) == seen
    browser.run(hide % "false")
    browser.until(f"{REFRESHED} > {seen}")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which finds parts that assistive technology cannot use."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    fetched = subprocess.run(
        ["npm", "pack", "--silent", f"axe-core@{AXE_VERSION}"], cwd=folder, capture_output=True
    )
    if fetched.returncode:
        pytest.skip("needs axe-core from npm's registry")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("width, scheme", SCREENS)
def test_axe_finds_nothing(
    scheduler: SchedulerProcess, browser: Browser, axe: str, width: int, scheme: str
) -> None:
    daemon = run(train(scheduler))
    daemon.piece_nbytes = 1 << 20
    daemon.logs["digits", 1, 0, "stderr"] = b"Traceback (most recent call last):\nValueError: x\n"
    run(submit(scheduler, 5))
    browser.screen(width, 900, scheme)
    browser.open(f"http://{scheduler.known['metrics_address']}/")
    assert violations(browser, axe) == []
    log_in(browser, scheduler, "#digits")
    browser.until("document.querySelectorAll('#curve path').length === 1")
    browser.until("document.querySelectorAll('#log div').length > 2")
    assert violations(browser, axe) == []
    run(fail(scheduler, daemon))
    browser.until("!document.getElementById('failure').hidden")
    browser.run("document.getElementById('restart').click()")
    assert violations(browser, axe) == []
    run(daemon.detach())


def violations(browser: Browser, axe: str) -> list[str]:
    """Rules of WCAG A and AA and of good practice that the page breaks, each with an element."""
    browser.run(f"(() => {{ if (!window.axe) {{ {axe} }} return true }})()")
    return list(
        browser.run(
            "axe.run(document).then(found => found.violations.map("
            "v => v.id + ': ' + v.nodes[0].html.slice(0, 200) + ' ' + v.nodes[0].failureSummary))"
        )
    )


def test_a_plan_is_drawn(scheduler: SchedulerProcess, browser: Browser, axe: str) -> None:
    text = two_layers("cpu[0, 1]", "cpu[0, 1]", width=16)
    plan = compile_graph(parse_graph(text), JobConfig("job"), Cluster(2))
    found = picture(plan) | {"memory": memory_of(plan)}
    browser.screen(1280, 900, "dark")
    log_in(browser, scheduler)
    drawn = f"""(async () => {{
        Object.defineProperty(document, 'hidden', {{value: true}});  // nothing is refreshed
        window.fetch = async () => Response.json({json.dumps(found)});
        document.getElementById('detail').hidden = false;
        document.getElementById('title').textContent = 'j1';
        document.getElementById('plan').open = document.getElementById('plan-edges').open = true;
        const job = {{kind: 'graph', id: 'j1', submitted_at: 1, attempt: 1}};
        await (await import('/ui/plan.js')).showPlan(job);
        return document.querySelectorAll('#drawing rect').length;
    }})()"""
    assert browser.run(drawn) == len(found["boxes"])
    rows = "[...document.querySelectorAll('#edges tr')].map(row => row.cells[2].textContent)"
    assert browser.run(rows) == [edge["sbp"] for edge in found["edges"]]
    corners = """[...document.querySelectorAll('#drawing rect')].map(
        box => box.getAttribute('x') + ',' + box.getAttribute('y'))"""
    assert len(set(browser.run(corners))) == len(found["boxes"])  # none lies on another
    reading = "document.getElementById('memory-reading').textContent"
    browser.run("document.getElementById('memory').focus()")
    browser.press("ArrowRight")
    first, last = (found["memory"][0]["points"][at] for at in (0, -1))
    assert browser.run(reading).startswith(f"op 0, {first[2]}: ")
    browser.press("ArrowLeft")
    assert browser.run(reading).startswith("op 0")
    browser.run("document.getElementById('memory').dispatchEvent(new Event('pointerleave'))")
    browser.press("ArrowLeft")
    assert browser.run(reading).startswith(f"op {last[0]}, {last[2]}: ")
    note = browser.run("document.getElementById('memory-note').textContent")
    peak = found["memory"][0]["peak"]
    assert note.startswith(f"Most at op {peak[0]}, {peak[2]}: ")
    assert violations(browser, axe) == []
    assert browser.problems() == []


def test_a_timeline_is_drawn_and_read_by_keyboard(
    scheduler: SchedulerProcess, browser: Browser, axe: str, tmp_path: Path
) -> None:
    steps = recorded(tmp_path, 2, *cluster_of(2), header={"trace": "t"})
    found = timeline([tmp_path / f"trace-rank{rank}.json.gz" for rank in range(len(steps))])
    answer = {"state": "done", "trace": "t"} | found
    browser.screen(1280, 900, "dark")
    log_in(browser, scheduler)
    drawn = f"""(async () => {{
        Object.defineProperty(document, 'hidden', {{value: true}});  // nothing is refreshed
        window.asked = [];
        window.fetch = async (address, options) => {{
            window.asked.push((options.method || 'GET') + ' ' + address);
            return Response.json({json.dumps(answer)});
        }};
        document.getElementById('detail').hidden = false;
        document.getElementById('title').textContent = 'j1';
        document.getElementById('timeline-details').open = true;
        const job = {{kind: 'graph', id: 'j1', may_change: true, finished_at: 0}};
        await (await import('/ui/timeline.js')).showTimeline(job);
        return document.querySelectorAll('#timeline rect').length;
    }})()"""
    assert browser.run(drawn) == len(found["acts"]) + len(found["waits"])
    browser.run("document.getElementById('timeline').focus()")
    reading = "document.getElementById('timeline-reading').textContent"
    read = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
        read.append(browser.run(reading))
    assert len(set(read)) == 3
    assert read[0].startswith(f"Rank 0, {found['rows'][0]['actor']} acts: ")
    assert f", {found['rows'][1]['actor']} " in read[2]
    assert violations(browser, axe) == []
    browser.run("document.getElementById('trace').click()")
    browser.until("window.asked.includes('POST /api/jobs/j1/trace?steps=3')")
    assert browser.problems() == []


# ---- one job -------------------------------------------------------------------------------------


def test_logs_are_followed_and_what_is_selected_stays(
    scheduler: SchedulerProcess, browser: Browser
) -> None:
    daemon = run(train(scheduler))
    daemon.piece_nbytes = 1 << 20
    key = ("digits", 1, 0, "stdout")
    daemon.logs[key] = b"\x1b[32mfirst\x1b[0m\n 10%\r 20%\r 30%"
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler, "#digits")
    lines = "[...document.querySelectorAll('#log div')].map(line => line.textContent)"
    browser.until(f"{lines}.length === 2")
    assert browser.run(lines) == ["first", " 30%"]
    browser.run("getSelection().selectAllChildren(document.querySelector('#log div'))")
    daemon.logs[key] += b"\r100%\n" + b"".join(b"line %d\n" % n for n in range(300))
    browser.until(f"{lines}.length === 302")
    assert browser.run(lines)[1] == "100%"
    assert browser.run("getSelection().toString()") == "first"
    browser.run("getSelection().removeAllRanges()")
    log = "document.getElementById('log')"
    daemon.logs[key] += b"end\n"
    browser.until(f"{lines}.at(-1) === 'end'")
    to_end = f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight"
    assert browser.run(to_end) < 24
    browser.run(f"{log}.scrollTop = 0")
    browser.until("!document.getElementById('log-follow').checked")
    daemon.logs[key] += b"more\n"
    browser.until(f"{lines}.at(-1) === 'more'")
    assert browser.run(f"{log}.scrollTop") == 0  # who reads is not taken away
    assert browser.problems() == []
    run(daemon.detach())


def test_the_cause_of_a_failure_comes_first(scheduler: SchedulerProcess, browser: Browser) -> None:
    daemon = run(train(scheduler))
    daemon.piece_nbytes = 1 << 20
    trace = b'Traceback (most recent call last):\n  File "t.py", line 3\nValueError: no column x\n'
    daemon.logs["digits", 1, 0, "stderr"] = b"starting\n" + trace
    run(fail(scheduler, daemon))
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler, "#digits")
    browser.until("!document.getElementById('failure').hidden")
    words = browser.run("document.getElementById('words').textContent")
    assert words.encode() + b"\n" == trace
    box = "document.getElementById('{}').getBoundingClientRect()"
    assert browser.run(box.format("failure") + ".bottom") < browser.run(box.format("log") + ".top")
    assert browser.run("document.title").startswith("FAILED digits")
    assert browser.problems() == []
    run(daemon.detach())


async def fail(scheduler: SchedulerProcess, daemon: FakeDaemon) -> None:
    id_ = (await daemon.told("start")).id
    await daemon.exit(id_, 1, "USER_ERROR", "ValueError: no column x")
    async with Client(scheduler) as client:
        await client.until("digits", "FAILED")


def test_jobs_are_filtered_and_sorted(scheduler: SchedulerProcess, browser: Browser) -> None:
    run(submit(scheduler, 12))
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler)
    browser.until(f"{ROWS}.length === 12")
    shown = f"[...{ROWS}].map(row => row.dataset.job).join()"
    head = "document.querySelector('#heads th button')"
    numbered = [f"job{number:03}" for number in range(12)]
    browser.run(f"{head}.click()")
    assert browser.run(shown) == ",".join(numbered)  # model 2 before model 10
    assert browser.run(f"{head}.parentNode.getAttribute('aria-sort')") == "ascending"
    browser.run(f"{head}.click()")
    assert browser.run(shown) == ",".join(reversed(numbered))
    browser.run("document.getElementById('filter').focus()")
    for key in "model 1":
        browser.press(key)
    browser.until(f"{ROWS}.length === 3")
    assert browser.run(shown) == "job011,job010,job001"
    browser.press("7")
    browser.until(f"{ROWS}.length === 0")
    assert browser.run("!document.getElementById('unmatched').hidden")
    assert browser.run("document.getElementById('none').hidden")
    assert browser.run("document.activeElement.id") == "filter"


def test_a_job_is_cancelled_after_a_question_and_restarted(
    scheduler: SchedulerProcess, browser: Browser
) -> None:
    run(submit(scheduler, 1))
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler, "#job000")
    browser.until("!document.getElementById('cancel').hidden")
    assert browser.run("document.getElementById('restart').hidden")
    state, is_open = (
        "document.getElementById('state').textContent",
        "document.getElementById('confirm').open",
    )
    browser.run("document.getElementById('cancel').click()")
    assert browser.run(is_open)
    browser.run("document.getElementById('no').click()")
    refresh_twice(browser)
    assert browser.run(state) == "QUEUED" and not browser.run(is_open)
    browser.run("document.getElementById('cancel').click()")
    assert "Cancel model 0?" in browser.run("document.getElementById('question').textContent")
    browser.run("document.getElementById('yes').click()")
    browser.until(f"{state} === 'CANCELLED' && !document.getElementById('restart').hidden")
    browser.run("document.getElementById('restart').click()")
    browser.run("document.getElementById('yes').click()")
    browser.until(f"{state} === 'QUEUED'")
    assert browser.problems() == []


def test_who_may_only_look_has_no_buttons(scheduler: SchedulerProcess, browser: Browser) -> None:
    run(submit(scheduler, 1))
    secret = run(tokens(scheduler, eve="view"))["eve"]
    log_in(browser, scheduler, "#job000", secret)
    browser.until("document.getElementById('state').textContent === 'QUEUED'")
    assert browser.run("document.getElementById('cancel').hidden")
    assert browser.run("document.getElementById('who').textContent") == "eve (view)"
    browser.run("document.getElementById('leave').click()")
    assert browser.run("sessionStorage.length") == 0
    assert browser.run("getComputedStyle(document.getElementById('content')).display") == "none"


# ---- curves --------------------------------------------------------------------------------------

READING = "document.getElementById('reading').innerText"


async def train_two(scheduler: SchedulerProcess) -> list[FakeDaemon]:
    """Two jobs beside each other."""
    daemons = [await FakeDaemon(scheduler, f"n1/cpu:{n}").attach() for n in range(2)]
    async with Client(scheduler) as client:
        for number, daemon in enumerate(daemons):
            await client.submit(f"run{number}", name=f"run {number}")
            id_ = (await daemon.told("start")).id
            for step in range(1, 41):
                loss = float("nan") if step == 20 else 10.0 ** (-step / 10 - number)
                await daemon.progress(id_, step, total_steps=100, metrics={"loss": loss})
                await asyncio.sleep(0.05)
    return daemons


def test_two_jobs_on_one_chart(scheduler: SchedulerProcess, browser: Browser) -> None:
    daemons = run(train_two(scheduler))
    browser.screen(1280, 900, "light")
    log_in(browser, scheduler, "#run0")
    path = "document.querySelectorAll('#curve path')"
    browser.until(f"{path}.length === 1 && {READING}.includes('step 40: 0.0001')")
    assert browser.run(f"{path}[0].getAttribute('d').split('M').length") == 3  # a gap: not finite
    names = "[...document.getElementById('metric').options].map(o => o.value).join()"
    assert browser.run(names) == "loss,step,steps/s"
    browser.run(choice("beside", "run1"))
    browser.until(f"{path}.length === 2 && {READING}.includes('step 40: 1.000e-5')")
    browser.run("document.getElementById('log-scale').click()")
    ends = f"[...{path}].map(p => Number(p.getAttribute('d').split(',').at(-1)))"
    starts = f"[...{path}].map(p => Number(p.getAttribute('d').split(/[ML,]/)[2]))"
    first, last = browser.run(starts), browser.run(ends)
    # Straight lines, a decade apart: the second is as far below the first at both ends.
    assert abs((first[1] - first[0]) - (last[1] - last[0])) < 0.5
    assert abs((last[0] - first[0]) / 3.9 - (first[1] - first[0])) < 0.5  # decades are alike
    browser.run("document.getElementById('curve').focus()")
    for _ in range(3):
        browser.press("ArrowLeft")
    assert "step 37: 0.00019953" in browser.run(READING)
    refresh_twice(browser)
    assert "step 37" in browser.run(READING)  # a refresh moves no cursor
    browser.run(choice("smooth", "0.9"))
    assert "unsmoothed" in browser.run(READING)
    browser.run(choice("axis", "time"))
    browser.run(choice("metric", "steps/s"))
    assert "after" in browser.run(READING)
    assert browser.problems() == []
    for daemon in daemons:
        run(daemon.detach())


def choice(id_: str, value: str) -> str:
    """Words that set a control as a user does."""
    return f"""(() => {{
        const control = document.getElementById({id_!r});
        control.value = {value!r};
        control.dispatchEvent(new Event('input', {{bubbles: true}}));
        control.dispatchEvent(new Event('change', {{bubbles: true}}));
    }})()"""


def test_a_script_that_reports_nothing_has_its_steps(
    scheduler: SchedulerProcess, browser: Browser
) -> None:
    daemon = run(FakeDaemon(scheduler).attach())
    run(submit(scheduler, 1))
    id_ = run(daemon.told("start")).id
    browser.screen(1280, 900, "dark")
    log_in(browser, scheduler, "#job000")
    browser.until("getComputedStyle(document.getElementById('pointless')).display !== 'none'")
    for step in (10, 30, 50):
        run(daemon.progress(id_, step, total_steps=100))
        browser.until(f"document.getElementById('steps').textContent.startsWith('{step} / 100')")
    browser.until(f"document.getElementById('metric').value === 'step' && {READING}.endsWith('50')")
    assert browser.problems() == []
    run(daemon.detach())
