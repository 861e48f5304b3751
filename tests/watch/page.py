#!/usr/bin/env python3
"""page.py NEBULA [FOLDER]: a real browser looks at the live page of a run: start, live values, a killed site, a cut line, dark, a phone's
width, the keyboard; no error in the console, no request to another host, text that can be read, everything labelled. With
FOLDER, pictures are kept there."""
import os, signal, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
from chromium import Browser, program

CHECKS = r"""(() => {
  const bad = [];
  const lum = c => { const v = c.map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const rgb = s => (s.match(/[\d.]+/g) || []).map(Number);
  const ratio = (a, b) => { const [x, y] = [lum(a), lum(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const back = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > .9) return c; } return [255, 255, 255]; };
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest("noscript,title,option,.skip,[hidden]")) continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement, fg = rgb(svg ? style.fill : style.color);
    if (ratio(fg, back(e)) < 4.5) bad.push(`contrast ${ratio(fg, back(e)).toFixed(2)} of "${e.textContent.trim().slice(0, 30)}"`);
  }
  for (const e of document.querySelectorAll("svg")) if (!e.getAttribute("aria-label") || e.getAttribute("role") !== "img") bad.push("a figure without a label");
  for (const e of document.querySelectorAll("input,select,button")) if (!e.getAttribute("aria-label") && !e.closest("label") && !e.textContent.trim()) bad.push("a control without a name: " + e.outerHTML.slice(0, 60));
  for (const e of document.querySelectorAll("th")) if (!e.scope) bad.push("a heading cell without scope");
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  for (const i of ids) if (ids.indexOf(i) !== ids.lastIndexOf(i)) bad.push("id twice: " + i);
  for (const e of document.querySelectorAll("[aria-labelledby]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))) bad.push("a label that is not there");
  if (!document.documentElement.lang || !document.title || document.querySelectorAll("h1").length !== 1) bad.push("language, title or heading");
  if (document.documentElement.scrollWidth > innerWidth + 1) bad.push(`wider than the window: ${document.documentElement.scrollWidth} of ${innerWidth}`);
  return bad;
})()"""


def main():
    nebula, shots = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    if not program():
        print("watch_page: skipped, there is no Chromium")
        return 0
    out = tempfile.mkdtemp(prefix="nebula-watch-")
    run = [sys.executable, here + "/fake_run.py", out]
    children, browser = [], None

    def fail(words):
        raise SystemExit("FAIL: " + words)

    def order(words):
        subprocess.run(run + ["--order", words], check=True)

    def shot(name):
        if shots:
            os.makedirs(shots, exist_ok=True)
            browser.shot(os.path.join(shots, name + ".png"))

    def check(where):
        found = browser.eval(CHECKS)
        if found: fail(f"{where}: {found[:8]}")

    try:
        fake = subprocess.Popen(run + ["--sites", "4", "--privacy", "7.5"], stdout=subprocess.PIPE, text=True)
        children.append(fake)
        if fake.stdout.readline().strip() != "ready": fail("there is no run to look at")
        keys = out + "/.keys"
        os.mkdir(keys)
        tool = lambda *words: subprocess.run([os.path.abspath(nebula), *words], check=True, cwd=keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for s in ("a", "b", "ops"): tool("site", "init", s)
        for s in ("a", "b"): tool("roster", "add", "draft", s, "127.0.0.1:1")
        tool("roster", "seal", "draft", "roster", "--operator", "ops")
        tool("roster", "join", "roster", "a")
        server = subprocess.Popen([nebula, "watch", out, "--port", "0", "--orders", keys + "/a", "--operator", keys + "/ops"], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "NEBULA_WATCH_ORDER_WORD": "a-word-for-orders"})
        children.append(server)
        url = server.stdout.readline().split()[-1]
        if not url.startswith("http://127.0.0.1:"): fail("no address: " + url)
        browser = Browser()
        browser.size(1440, 900)
        browser.go(url + "?theme=light")
        if browser.wait("document.body && document.body.dataset.ready === 'yes' && !!document.querySelector('#log time') && document.querySelectorAll('#loss-time path.line').length > 0") is None:
            fail(f"the page shows nothing: {browser.errors}")
        check("light")
        shot("light")
        steps = browser.eval("document.querySelector('#table tbody tr').cells[3].textContent")
        if browser.wait(f"document.querySelector('#table tbody tr').cells[3].textContent !== {steps!r}") is None: fail("the page does not live")
        # The pointer and the keys read values; a key zooms.
        browser.eval("document.querySelector('#loss-time svg').focus()")
        key = lambda k: browser.call("Input.dispatchKeyEvent", type="keyDown", key=k)
        key("ArrowLeft")
        if browser.wait("!document.getElementById('tip').hidden && document.getElementById('tip').textContent.includes('frankfurt')", 10) is None: fail("the arrow keys read no value")
        browser.eval("document.querySelector('#loss-time svg').focus()")
        key("+")
        if browser.wait("!document.getElementById('reset').hidden", 10) is None: fail("the plots do not zoom")
        browser.eval("document.getElementById('reset').click()")
        def reads():  # the plot is drawn again every second, so the pointer moves until it meets one
            x, y = browser.eval("(() => { const e = document.querySelector('#loss-tokens svg'); e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()")
            for k in range(3): browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + k, y=y)
            return browser.eval("!document.getElementById('tip').hidden && document.getElementById('tip').textContent.includes('tokens')")
        end = time.time() + 30
        while not reads():
            if time.time() > end: fail("nothing is read under the pointer")
            time.sleep(0.1)
        # Rows over time are read with the keys, too; dragging zooms; every line is there as text.
        browser.eval("document.querySelector('#timeline svg').focus()")
        key("ArrowDown"), key("ArrowLeft")
        if browser.wait("!document.getElementById('tip').hidden && document.getElementById('tip').textContent.includes('frankfurt, ')", 20) is None: fail("the keys read no event")
        time.sleep(2.5)  # it is drawn anew meanwhile, and what was chosen stays
        if not browser.eval("!document.getElementById('tip').hidden && document.activeElement.closest('#timeline') !== null"): fail("what the keys read is gone when the plot is drawn anew")
        x, y = browser.eval("(() => { const e = document.querySelector('#loss-time svg'); e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()")
        def drags():
            mouse = lambda kind, dx, **more: browser.call("Input.dispatchMouseEvent", type=kind, x=x + dx, y=y, **more)
            mouse("mousePressed", 0, button="left", buttons=1, clickCount=1), mouse("mouseMoved", 60, button="left", buttons=1), mouse("mouseReleased", 120, button="left", clickCount=1)
            return browser.eval("!document.getElementById('reset').hidden")
        end = time.time() + 30
        while not drags():
            if time.time() > end: fail("dragging does not zoom")
        browser.eval("document.getElementById('reset').click(); document.querySelector('#lines summary').click()")
        if browser.wait("document.querySelectorAll('#lines tbody tr').length >= 3", 20) is None: fail("the lines are not there as text")
        # Sample outputs, the privacy budget, orders.
        if browser.wait("!document.getElementById('samples').hidden && document.getElementById('samples').textContent.includes('continued    each of them')", 20) is None: fail("no sample outputs")
        if browser.wait("document.getElementById('privacy').textContent.includes('epsilon 7.50 of 8.00') && document.getElementById('trouble').textContent.includes('privacy budget')", 20) is None: fail("no privacy budget")
        browser.eval("document.getElementById('order-name').value = 'evict'; document.getElementById('order-name').onchange(); document.getElementById('order-value').value = 'b'; document.getElementById('order-ask').click()")
        if browser.eval("document.getElementById('order-sure').hidden || document.getElementById('order-text').textContent !== 'Order: evict b?'"): fail("an order is not asked for twice")
        browser.eval("document.getElementById('order-yes').click()")
        if browser.wait("document.getElementById('order-said').textContent.includes('the word for orders is wrong')", 20) is None: fail("an order without its word")
        browser.eval("document.getElementById('order-word').value = 'a-word-for-orders'; document.getElementById('order-ask').click(); document.getElementById('order-yes').click()")
        if browser.wait("document.getElementById('order-said').textContent.includes('no run has been under way')", 20) is None: fail("the page says: " + browser.eval("document.getElementById('order-said').textContent"))
        browser.errors = [e for e in browser.errors if "/api/v1/orders" not in e]  # the two refusals
        # A site that is killed is red, a line that is cut is shaded.
        order("kill tokyo")
        took = browser.wait("!!document.querySelector('.node.gone[data-site=tokyo]') && document.getElementById('trouble').textContent.includes('tokyo')")
        if took is None: fail("a killed site is not shown")
        shadings = "document.querySelectorAll('#loss-time .shade').length"
        before = browser.eval(shadings)
        order("cut frankfurt oregon")
        cut = browser.wait("!!document.querySelector('.edge.down') && document.getElementById('line-words').textContent.includes('frankfurt – oregon: the line is down')")
        if cut is None or browser.wait(shadings + " >= 2", 20) is None: fail(f"a cut line is not shaded: {before} shades")
        check("with a site gone")
        shot("gone")
        print(f"watch_page: a killed site was red after {took:.1f} s, a cut line after {cut:.1f} s")
        browser.eval("document.getElementById('theme').click()")
        if browser.wait("document.documentElement.dataset.theme === 'dark'", 10) is None: fail("it does not get dark")
        browser.wait("new Promise(r => requestAnimationFrame(() => r(true)))")
        check("dark")
        shot("dark")
        browser.size(390, 800)
        if browser.wait("document.querySelector('#loss-time svg').getBoundingClientRect().width < 390 && document.querySelector('#loss-time svg').viewBox.baseVal.width < 390", 20) is None: fail("the plots do not follow the window")
        check("390 wide")
        shot("phone")
        if browser.errors: fail(f"errors in the console: {browser.errors[:5]}")
        strange = [r for r in browser.requests if not r.startswith(url) and not r.startswith("data:")]
        if strange: fail(f"requests to other hosts: {strange[:5]}")
        print(f"watch_page: ok, {len(browser.requests)} requests, all to this server")
        return 0
    finally:
        if browser: browser.close()
        for c in children: c.send_signal(signal.SIGTERM)
        for c in children: c.wait(20)
        subprocess.run(["rm", "-rf", out])


sys.exit(main())
