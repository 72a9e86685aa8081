"""A page in headless Chromium: real pointer and key events, and what the browser complains of."""

import json
import shutil

import pytest

__all__ = ["PATIENCE", "Keys", "Tab", "start"]

webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.actions.action_builder import ActionBuilder  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PATIENCE = 600  # seconds, which a busy machine does not need


def start(javascript=True):
    """A browser without a window; skips where there is none."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver: Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(argument)
    if not javascript:
        content = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", content)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))


class Tab:
    """One page that was opened in the browser."""

    def __init__(self, driver, file):
        self.driver, self.address = driver, file.as_uri()
        self.drain()
        driver.get(self.address)
        self.wait_for("document.documentElement.dataset.ready")

    def __call__(self, expression):
        """What JavaScript says."""
        return self.driver.execute_script(f"return {expression}")

    def drain(self):
        """What has been logged since the last call."""
        return {kind: self.driver.get_log(kind) for kind in ("browser", "performance")}

    def complaints(self):
        """Errors and warnings of the console, and addresses that were asked for."""
        logs = self.drain()
        events = [json.loads(entry["message"])["message"] for entry in logs["performance"]]
        asked = [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
        foreign = [url for url in asked if url != self.address and not url.startswith("data:")]
        return [entry["message"] for entry in logs["browser"]] + foreign

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.one(selector).text

    def state(self, *names):
        found = self("JSON.parse(JSON.stringify(page.state))")
        return tuple(found[name] for name in names)

    def scroll_to(self, element):
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)

    def point(self, element, x=None, y=None):
        """Moves the pointer: to the middle, or x and y pixels from the upper left corner."""
        if x is None:
            self.scroll_to(element)
            ActionChains(self.driver).move_to_element(element).perform()
            return
        self.driver.execute_script("arguments[0].parentElement.scrollIntoView()", element)
        box = self.driver.execute_script("return arguments[0].getBoundingClientRect()", element)
        chain = ActionBuilder(self.driver)
        chain.pointer_action.move_to_location(round(box["x"] + x), round(box["y"] + y))
        chain.perform()

    def click(self, element, x=None, y=None):
        self.point(element, x, y)
        ActionChains(self.driver).click().perform()

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def wait_for(self, expression):
        WebDriverWait(self.driver, PATIENCE).until(lambda _: self(expression))

    def emulate(self, method, **parameters):
        self.driver.execute_cdp_cmd(f"Emulation.{method}", parameters)

    def ink(self, selector):
        """How many different colours a canvas shows."""
        return self(
            f"""(() => {{
              const {{ width, height }} = document.querySelector({selector!r});
              const context = document.querySelector({selector!r}).getContext("2d");
              const all = context.getImageData(0, 0, width, height).data;
              return new Set(new Uint32Array(all.buffer)).size;
            }})()"""
        )
