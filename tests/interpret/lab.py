"""JupyterLab or Notebook 7 in headless Chromium: a server, a notebook, real pointer and key events.

Waiting ends after PATIENCE seconds, which a busy machine does not need; a step that hangs does.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException

from browser import PATIENCE, ActionChains, By, Keys, WebDriverWait, start

__all__ = ["Lab", "Notebook", "View"]

BETWEEN_TRIES = 15  # seconds
RUNS = 4  # of a cell that does not end
SETTINGS = "lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Lab:
    """A server with its own settings, and a browser that is connected to it.

    program : "jupyterlab", or "notebook", which is Notebook 7
    """

    PATHS: ClassVar = {"jupyterlab": "doc/tree", "notebook": "notebooks"}

    def __init__(self, folder, program="jupyterlab"):
        anywidget = pytest.importorskip("anywidget", reason="needs the package anywidget")
        pytest.importorskip(program, reason=f"needs the package {program}")
        self.driver = start()
        self.folder, port = Path(folder), free_port()
        share = Path(anywidget.__file__).parents[4] / "share" / "jupyter"
        places = {"JUPYTER_PATH": share}
        if program == "jupyterlab":
            places["JUPYTERLAB_DIR"] = share / "lab"
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "HOME"):
            places[name] = self.folder / name
            places[name].mkdir()
        quiet = places["JUPYTER_CONFIG_DIR"] / SETTINGS
        quiet.parent.mkdir(parents=True)
        quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
        options = [f"--port={port}", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        options += ["--IdentityProvider.token=", "--ServerApp.port_retries=0"]
        self.log = (self.folder / "lab.log").open("wb")
        self.server = subprocess.Popen(
            [sys.executable, "-m", program, *options],
            cwd=self.folder,
            env=os.environ | {name: str(place) for name, place in places.items()},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        address = f"http://127.0.0.1:{port}"
        self.documents = f"{address}/{self.PATHS[program]}"
        for _ in range(10 * PATIENCE):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        self.close()
        pytest.fail((self.folder / "lab.log").read_text()[-2000:])

    def close(self):
        self.driver.quit()
        for _ in range(PATIENCE // BETWEEN_TRIES):
            self.server.terminate()  # once more, where a server that was busy has missed it
            with suppress(subprocess.TimeoutExpired):
                self.server.wait(BETWEEN_TRIES)
                break
        self.log.close()

    def open(self, name, *cells):
        """A notebook of these cells of code, all of which are run."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{at}",
                    "execution_count": None,
                    "metadata": {},
                    "outputs": [],
                    "source": source,
                }
                for at, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.folder / name).write_text(json.dumps(notebook))
        self.driver.get(f"{self.documents}/{name}")
        self.driver.get_log("browser")  # what the page before this one said when it was left
        return Notebook(self.driver)


class Notebook:
    """An open notebook, and the widgets in it."""

    def __init__(self, driver):
        self.driver = driver
        self.wait(lambda: self.cells and "Idle" in self.status)

    @property
    def cells(self):
        return self.driver.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-Cell")

    @property
    def status(self):
        found = self.driver.find_elements(By.CSS_SELECTOR, ".jp-Notebook-ExecutionIndicator")
        return found[0].get_attribute("data-status").title() if found else ""

    def wait(self, condition, seconds=PATIENCE):
        """What is drawn anew in between is looked for again."""
        stale = [StaleElementReferenceException]
        WebDriverWait(self.driver, seconds, ignored_exceptions=stale).until(lambda _: condition())

    def retried(self, do):
        """What `do` returns; where the page was drawn anew in between, it is done again."""
        found = []
        self.wait(lambda: found.append(do()) or found)
        return found[0]

    def press(self, *keys):
        """Keys together."""
        chain = ActionChains(self.driver)
        for key in keys:
            chain.key_down(key)
        for key in reversed(keys):
            chain.key_up(key)
        chain.perform()

    def run(self, at):
        """Runs a cell; its text output. What is lost on its way to the kernel, or back, while a
        machine is busy is run again."""
        for _ in range(RUNS):
            self.start(at)
            with suppress(TimeoutException):
                return self.finish(at, PATIENCE / RUNS)
        pytest.fail(f"cell {at} does not end")

    def start(self, at):
        """Begins to run a cell. Clicks and keys that a page takes while it is built are lost."""
        before = self.prompt(at)
        for _ in range(PATIENCE // BETWEEN_TRIES):
            self.click(lambda: self.editor(at))
            with suppress(TimeoutException):
                self.wait(self.may_type, BETWEEN_TRIES)
                self.press(Keys.CONTROL, Keys.ENTER)
                self.wait(lambda: "*" in before or self.prompt(at) != before, BETWEEN_TRIES)
                return
        pytest.fail(f"cell {at} does not run")

    def may_type(self):
        """Whether a cell has the focus."""
        return self.driver.switch_to.active_element.get_attribute("class") == "cm-content"

    def finish(self, at, seconds=PATIENCE):
        """Waits for a cell that runs; its text output."""
        self.wait(lambda: self.count(at), seconds)
        return self.output(at)

    def type(self, at, source):
        """Writes a cell anew."""
        self.click(lambda: self.editor(at))
        self.press(Keys.CONTROL, "a")
        ActionChains(self.driver).send_keys(source).perform()

    def restart(self):
        """Restarts the kernel, by the button and a yes."""
        self.driver.find_element(By.CSS_SELECTOR, '[data-jp-item-name="restart"] jp-button').click()
        accept = ".jp-Dialog .jp-mod-accept"
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, accept))
        self.driver.find_element(By.CSS_SELECTOR, accept).click()

    def count(self, at):
        """The number of its last run; None where it never ran, or is running."""
        found = re.search(r"\d+", self.prompt(at))
        return found and found[0]

    def editor(self, at):
        return self.cells[at].find_element(By.CSS_SELECTOR, ".cm-content")

    def prompt(self, at):
        prompt = ".jp-InputPrompt"
        return self.retried(lambda: self.cells[at].find_element(By.CSS_SELECTOR, prompt).text)

    def output(self, at):
        pre = ".jp-OutputArea-output pre"
        return self.retried(
            lambda: "\n".join(
                one.text for one in self.cells[at].find_elements(By.CSS_SELECTOR, pre)
            )
        )

    def click(self, find):
        """Clicks the element that `find` finds."""

        def click():
            element = find()
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            ActionChains(self.driver).click(element).perform()

        self.retried(click)

    def explorers(self):
        hosts = self.driver.find_elements(By.CSS_SELECTOR, ".simdformer-explorer")
        return [View(self, host.shadow_root) for host in hosts]


class View:
    """A widget: what stands in its shadow root."""

    def __init__(self, notebook, root):
        self.notebook, self.root = notebook, root

    def all(self, selector):
        return self.root.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.root.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.one(selector).text

    def click(self, selector, at=0):
        self.notebook.click(lambda: self.all(selector)[at])

    def wait(self, condition):
        self.notebook.wait(condition)

    def write(self, selector, text):
        """Takes the place of what stands in a field, by keys."""
        self.click(selector)
        self.notebook.press(Keys.CONTROL, "a")
        ActionChains(self.notebook.driver).send_keys(text).perform()
