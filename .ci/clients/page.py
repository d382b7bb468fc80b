"""The chat page in a browser: URL KEY CHROMIUM [FOLDER for screenshots]."""

import re
import sys

from playwright.sync_api import expect, sync_playwright

url, key, chromium = sys.argv[1:4]
folder = sys.argv[4] if len(sys.argv) > 4 else None
SCREENS = {
    "desktop": dict(viewport={"width": 1280, "height": 800}),
    "phone": dict(viewport={"width": 390, "height": 844}, device_scale_factor=2, is_mobile=True, has_touch=True),
    "phone-dark": dict(
        viewport={"width": 390, "height": 844}, device_scale_factor=2, is_mobile=True, has_touch=True, color_scheme="dark"
    ),
}
SAMPLE = """# A heading

Some **bold**, *slanted*, `code`, a [link](https://example.org/a) and [no link](javascript:alert(1)).

- one
- two
  - inner
- three

1. first
2. second

> a quote

```rust
fn main() { println!("a long line of code that goes on and on, far beyond the edge of a phone's screen"); }
```

| a | b |
|---|---|
| 1 | <b>2</b> |

<img src=x onerror="document.title = 'broken'">"""


def said(page, i):
    return page.locator(".turn.assistant").nth(i).locator(".text").inner_text()


def converse(page, shot):
    page.click("#open")
    page.fill("#key", key)
    page.fill("#max_tokens", "60")
    page.fill("#seed", "7")
    page.dispatch_event("#key", "change")
    shot("settings")
    page.click("#open")
    expect(page.locator("#dot")).to_have_class("ready", timeout=30000)
    expect(page.locator("#state")).to_contain_text("cache")
    shot("empty")
    page.fill("#say", "Tell me of a fox.")
    page.click("#send")
    expect(page.locator("#send")).to_be_visible(timeout=60000)
    expect(page.locator(".turn.assistant .figures")).to_contain_text("tokens")
    shot("answered")
    first = said(page, 0)
    assert first.strip(), "an answer"
    # The same seed, the same answer.
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("#send")).to_be_visible(timeout=60000)
    assert page.locator(".turn").count() == 2 and said(page, 0) == first
    # Another question in its place.
    page.locator(".turn.user").get_by_role("button", name="Edit").click()
    page.get_by_label("Edit message").fill("Tell me of a river, and of a house.")
    shot("edit")
    page.get_by_role("button", name="Send again").click()
    expect(page.locator("#send")).to_be_visible(timeout=60000)
    assert page.locator(".turn").count() == 2
    # An answer that is stopped keeps what it said.
    page.evaluate("document.getElementById('max_tokens').value = ''")
    page.fill("#say", "And more, please.")
    page.click("#send")
    expect(page.locator(".turn.assistant").nth(1).locator(".text")).to_have_text(re.compile(r"(.|\n){20,}"), timeout=30000)
    shot("streaming")
    if page.locator("#stop").is_visible():
        page.click("#stop")
    expect(page.locator("#send")).to_be_visible(timeout=10000)
    shot("stopped")
    # It is all there after a reload.
    turns = page.locator(".turn").count()
    page.reload()
    assert page.locator(".turn").count() == turns
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0


def render(page, shot):
    page.evaluate(
        """(sample) => { turns = [{role: 'user', content: 'Show me what you can write, <b>please</b>.'},
        {role: 'assistant', thoughts: 'A sample is wanted.\\nI shall use *all* of it.', content: sample, figures: '64 tokens'},
        {role: 'user', content: 'Thanks'}, {role: 'assistant', content: '', error: 'request (9000 tokens) exceeds the context'}];
        show(); document.getElementById('scroll').scrollTop = 0; }""",
        SAMPLE,
    )
    shot("markdown")
    assert page.locator(".md img, .md b").count() == 0, "nothing is read as HTML"
    assert page.locator(".md a").count() == 1, "only addresses of the web are links"
    assert page.locator(".md li").count() == 6 and page.locator(".md td").count() == 2
    assert not page.locator("details.thoughts").first.evaluate("d => d.open"), "thoughts are folded"
    page.locator("details.thoughts summary").first.click()
    assert page.locator("details.thoughts").first.evaluate("d => d.open")
    shot("thoughts")
    assert page.title() != "broken"
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide, "nothing is wider than the screen"
    page.evaluate("bottom(true)")
    shot("error")


with sync_playwright() as p:
    browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    for name, screen in SCREENS.items():
        context = browser.new_context(**screen)
        page = context.new_page()
        faults, elsewhere = [], []
        page.on("pageerror", lambda e: faults.append(str(e)))
        page.on("request", lambda r: elsewhere.append(r.url) if not r.url.startswith((url, "data:")) else None)
        page.goto(url)
        shot = lambda what: page.screenshot(path=f"{folder}/{name}-{what}.png") if folder else None
        converse(page, shot)
        render(page, shot)
        assert not faults and not elsewhere, (faults, elsewhere)
        context.close()
        print(f"the chat page works on a {name} screen")
    browser.close()
