"""A picture of a report for docs/.

    screenshot.py PAGE.html OUT.png [SECTION] [light|dark] [WIDTH HEIGHT]
"""
import base64, pathlib, sys

import browser

page, out, section, theme, width, height = [*sys.argv[1:], *["", "light", "1200", "1000"][len(sys.argv) - 3:]]
with browser.Browser() as opened:
    tab = opened.page(pathlib.Path(page).resolve(), int(width), int(height))
    tab.value(f"document.documentElement.dataset.theme = '{theme}'; build(); 0")
    tab.settle()
    if section:
        tab.value(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}}); 0")
        tab.settle()
    pathlib.Path(out).write_bytes(base64.b64decode(tab.ask("Page.captureScreenshot", format="png")["data"]))
