#!/usr/bin/env python3
"""server.py NEBULA: what `nebula-i watch` answers, and to whom: numbers that agree with each other, a token, TLS, hostile clients."""
import concurrent.futures, http.client, json, os, re, shutil, signal, socket, sqlite3, ssl, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
nebula = os.path.abspath(sys.argv[1])
out = tempfile.mkdtemp(prefix="nebula-watch-")
children = []


def fail(words):
    raise SystemExit("FAIL: " + words)


def start(*words, env=None):
    p = subprocess.Popen([nebula, "watch", *words, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    children.append(p)
    line = p.stdout.readline()
    port = re.search(r":(\d+)/$", line.strip())
    if not port: fail(f"no address in '{line}': {p.stderr.read()}")
    return p, int(port.group(1))


def ask(port, path, headers=None, method="GET", tls=None, body=None):
    c = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=60) if tls else http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request(method, path, body=body, headers=headers or {})
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, text, r.headers


def until(what, words, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        if what(): return
        time.sleep(0.1)
    fail(words)


def refused(*words, because):
    p = subprocess.run([nebula, "watch", *words], capture_output=True, text=True, timeout=60)
    if p.returncode == 0 or because not in p.stderr: fail(f"watch {words}: {p.returncode}, {p.stderr}")


def one_status():
    """The API, Prometheus and `status --json` say the same."""
    fake = subprocess.Popen([sys.executable, here + "/fake_run.py", out, "--sites", "3", "--lab", "--letters", "--points", "50"], stdout=subprocess.PIPE, text=True)
    children.append(fake)
    fake.stdout.readline()
    _, port = start(out)
    until(lambda: ask(port, "/healthz")[0] == 200, "never healthy")
    subprocess.run([sys.executable, here + "/fake_run.py", out, "--order", "kill b"], check=True)
    sites = lambda: {s["name"]: s for s in json.loads(ask(port, "/api/v1/status")[1])["sites"]}
    until(lambda: sites()["b"]["health"] == "gone", "a killed site is not gone")
    fake.send_signal(signal.SIGSTOP)  # nothing changes while the answers are compared
    cli = json.loads(subprocess.run([nebula, "status", out, "--json"], capture_output=True, text=True, check=True).stdout)
    newest = {s["name"]: s["step"] for s in cli["sites"]}
    until(lambda: {n: s["step"] for n, s in sites().items()} == newest, "the server does not see the newest status")
    api, text = json.loads(ask(port, "/api/v1/status")[1]), ask(port, "/metrics")[1]
    for name, s in {s["name"]: s for s in api["sites"]}.items():
        c = next(x for x in cli["sites"] if x["name"] == name)
        for key in ("health", "step", "record", "loss", "sent"):
            if s[key] != c[key]: fail(f"{name}.{key}: {s[key]} and {c[key]}")
        for metric, key in (("nebula_site_steps_total", "step"), ("nebula_site_record", "record")):
            if f'{metric}{{site="{name}"}} {s[key]}\n' not in text: fail(f"{metric} of {name} is not {s[key]}")
        if f'nebula_site_up{{site="{name}"}} {int(name != "b")}\n' not in text: fail("nebula_site_up of " + name)
    if "b            train         gone" not in subprocess.run([nebula, "status", out], capture_output=True, text=True).stdout: fail("nebula-i status does not say 'gone'")
    fake.send_signal(signal.SIGCONT)
    if shutil.which("promtool"):
        p = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        if p.returncode or p.stderr: fail("promtool: " + p.stderr)
    else:
        print("watch_server: promtool is not there; its check of /metrics is skipped")
    names = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    grafana = os.path.join(here, "../../examples/grafana.json")
    if os.path.exists(grafana):
        used = set(re.findall(r"nebula_[a-z0-9_]+", open(grafana).read()))
        if not used or used - names: fail(f"examples/grafana.json names what there is not: {used - names}")
    scrape(port)
    return port, fake


def scrape(port):
    """A real Prometheus takes the numbers in."""
    if not shutil.which("prometheus"):
        print("watch_server: prometheus is not there; a real scrape is skipped")
        return
    folder = tempfile.mkdtemp(prefix="nebula-prometheus-")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        own = s.getsockname()[1]
    with open(folder + "/p.yml", "w") as f:
        f.write(f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs: [{{job_name: nebula, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n")
    p = subprocess.Popen(["prometheus", f"--config.file={folder}/p.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{own}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def scraped():
            try: found = json.loads(ask(own, "/api/v1/query?query=nebula_site_up")[1])["data"]["result"]
            except (OSError, KeyError, ValueError): return False
            return {r["metric"]["site"]: r["value"][1] for r in found} == {"a": "1", "b": "0", "c": "1"}
        until(scraped, "Prometheus has not got the sites")
    finally:
        p.terminate(), p.wait(20)
        shutil.rmtree(folder)


def the_past(port):
    h = json.loads(ask(port, "/api/v1/history?name=loss&site=a&points=20")[1])["sites"]
    if list(h) != ["a"] or list(h["a"]) != ["loss"] or not 5 <= len(h["a"]["loss"]["t"]) <= 22: fail(f"history: {str(h)[:200]}")
    for wrong in ("points=0", "points=x", "name=nothing", "from=-1", "else=1"):
        if ask(port, "/api/v1/history?" + wrong)[0] != 400: fail("accepted: " + wrong)
    log = json.loads(ask(port, "/api/v1/log?after=0")[1])
    if not any(e["kind"] == "link down" for e in log["events"]): fail("the log lacks a lost link")


def alerts_and_text():
    """Each alert is told once when it begins, once when it ends, to a command and to an address; a terminal shows the same run."""
    import http.server, threading
    got = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204), self.end_headers()

        def log_message(self, *a): pass

    hook = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    folder = out + "/alerts"
    run = [sys.executable, here + "/fake_run.py", folder, "--letters", "--sites", "3", "--points", "20"]
    fake = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
    children.append(fake)
    fake.stdout.readline()
    start(folder, "--alert", f"http://127.0.0.1:{hook.server_port}/hook?key=1")
    start(folder, "--alert", f'echo "$NEBULA_ALERT $NEBULA_ALERT_SITE $NEBULA_ALERT_STATE" >> {folder}/told')
    order = lambda words: subprocess.run(run[:3] + ["--order", words], check=True)
    told = lambda: open(folder + "/told").read().splitlines() if os.path.exists(folder + "/told") else []
    order("kill b")
    until(lambda: "site-gone b begins" in told() and any(a["alert"] == "site-gone" and a["site"] == "b" and a["state"] == "begins" for a in got), "no alert")
    text = subprocess.run([nebula, "watch", folder, "--text"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80", "LINES": "24"}).stdout
    if not re.search(r"^b +gone", text, re.M) or not re.search(r"^a +training", text, re.M): fail("the terminal shows:\n" + text)
    if any(len(l) > 80 for l in text.splitlines()) or len(text.splitlines()) > 24: fail("it does not fit a terminal of 80 by 24:\n" + text)
    order("back b")
    until(lambda: "site-gone b ends" in told() and any(a["state"] == "ends" for a in got), "the end of an alert is not told")
    if told().count("site-gone b begins") != 1 or told().count("site-gone b ends") != 1: fail(f"told more than once: {told()}")
    hook.shutdown()


def the_door(port):
    for host in ("evil.example", "127.evil.example", "127.0.0.1.evil.example:80", "[::1", ""):
        if ask(port, "/api/v1/status", {"Host": host})[0] != 403: fail(f"a page from elsewhere may look as '{host}'")
    other = {"Sec-Fetch-Site": "cross-site"}
    if ask(port, "/api/v1/history", {**other, "Sec-Fetch-Dest": "iframe"})[0] != 403: fail("another site's page keeps the server busy")
    if ask(port, "/", {**other, "Sec-Fetch-Dest": "document"})[0] != 200: fail("a link to the page does not lead there")
    if ask(port, "/", method="POST", body="x=1")[0] != 405: fail("POST was accepted")
    if ask(port, "/../../etc/passwd")[0] != 404: fail("a file of the system")
    head = ask(port, "/")[2]
    if "default-src 'none'" not in head["Content-Security-Policy"] or head["X-Content-Type-Options"] != "nosniff": fail("headers")
    refused(out, "--host", "0.0.0.0", because="--token")
    refused(out, "--token", "short", because="12 to 200")
    refused(out + "/nothing", because="no such folder")
    token = "correct-horse-battery"
    _, p = start(out, env={"NEBULA_WATCH_TOKEN": token})
    for headers in ({}, {"Authorization": "Bearer wrong-horse-battery"}, {"Authorization": "Bearer " + token + "x"}, {"Cookie": "nebula_watch=no"}, {"Authorization": "Bearer "}):
        for path in ("/api/v1/status", "/metrics", "/", "/watch.js", "/?token=wrong-horse-battery"):
            if ask(p, path, headers)[0] != 401: fail(f"{path} was answered to {headers}")
    if ask(p, "/api/v1/status", {"Authorization": "Bearer " + token})[0] != 200: fail("the token is refused")
    status, _, head = ask(p, "/?token=" + token)
    if status != 303 or "HttpOnly" not in head["Set-Cookie"] or "SameSite=Strict" not in head["Set-Cookie"]: fail("no cookie")
    cookie = {"Cookie": head["Set-Cookie"].split(";")[0]}
    if ask(p, "/", cookie)[0] != 200: fail("the cookie is refused")
    if token in head["Set-Cookie"] or ask(p, "/", {"Cookie": "nebula_watch=" + token})[0] != 401: fail("the cookie is the token")
    _, q = start(out, env={"NEBULA_WATCH_TOKEN": token})
    if ask(q, "/", cookie)[0] != 401: fail("a cookie is worth something at another start of the server")
    if ask(p, "/api/v1/orders", cookie)[0] != 404 or ask(p, "/api/v1/orders", {**cookie, "Content-Type": "application/json"}, "POST", body="{}")[0] != 404: fail("orders are taken without --orders")
    if ask(p, "/healthz")[0] not in (200, 503): fail("/healthz asks for a token")


WORD = "the-word-for-orders-1"
ORDER = {"Content-Type": "application/json", "Authorization": "Bearer " + WORD}


def orders_refused(port):
    """Whoever does not know the word, or comes from another page, gives no order."""
    give = lambda headers, body='{"order": "end"}': ask(port, "/api/v1/orders", {k: v for k, v in headers.items() if v}, "POST", body=body)[0]
    for headers, code in (({**ORDER, "Authorization": None}, 401), ({**ORDER, "Authorization": "Bearer " + WORD + "x"}, 401), ({**ORDER, "Authorization": "Bearer correct-horse-battery"}, 401),
                          ({**ORDER, "Content-Type": "text/plain"}, 415), ({**ORDER, "Content-Type": "application/x-www-form-urlencoded"}, 415), ({**ORDER, "Origin": "http://evil.example"}, 403),
                          ({**ORDER, "Origin": "null"}, 403), ({**ORDER, "Origin": "http://localhost:1"}, 403), ({**ORDER, "Sec-Fetch-Site": "same-site"}, 403), ({**ORDER, "Sec-Fetch-Site": "cross-site"}, 403),
                          ({**ORDER, "Host": "evil.example"}, 403)):
        if give(headers) != code: fail(f"an order with {headers}: not {code}")
    for body, code in (("", 400), ("{", 400), ("[]", 400), ('{"order": 3}', 400), ('{"order": "evict now"}', 400), ('{"order": "nothing"}', 409), ('{"order": "force", "word": "a"}', 409), ('{"order": "evict"}', 409), ('{"order": "end", "word": "a"}', 409),
                       ('{"order": "evict", "word": "a", "order": "end"}', 400), ('{"order": "' + "x" * 2000 + '"}', 413)):
        if give(ORDER, body) != code: fail(f"the order {body[:60]}: not {code}")
    if ask(port, "/api/v1/orders", {}, "OPTIONS")[0] != 405: fail("a browser's question whether another page may order")
    if ask(port, "/api/v1/status", ORDER, "POST", body="{}")[0] != 405: fail("POST to the status")


def orders():
    """An order through the page reaches a run of two sites, and the log carries it out; a stranger's does not."""
    folder = out + "/orders"
    os.mkdir(folder)
    shutil.copy(os.path.join(here, "../../docs/watch.md"), folder + "/text")
    with open(folder + "/valid", "w") as f: f.writelines(f"The page shows site {i} and its line to the others, and how long it waited.\n" for i in range(20))
    quiet = dict(cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = lambda *words: subprocess.run([nebula, *words], check=True, **quiet)
    for s in ("a", "b", "ops"): run("site", "init", s)
    with socket.socket() as x, socket.socket() as y:
        for s in (x, y): s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in (x, y)]
    for s, p in zip("ab", ports): run("roster", "add", "draft", s, f"127.0.0.1:{p}")
    run("roster", "seal", "draft", "roster", "--operator", "ops")
    for s in "ab": run("roster", "join", "roster", s)
    with open(folder + "/job.yaml", "w") as f:
        f.write("name: ordered\ntask: causal\ntokenizer: {type: bpe, vocab: 300, lines: 1000}\nmodel: {family: gpt2, hidden: 32, layers: 1, heads: 2}\n"
                "train: {steps: 10000000, tokens: 64, max_len: 32, lr: 1e-3, log_every: 100000, save_every: 100000, eval_every: 30, threads: 1}\n"
                "wan: {interval: 10, fragments: 1, rung: int8, tokens: 1000000000, round_seconds: 1}\ndata: [{file: text}, {file: valid, use: valid}]\nsites: [{name: a}, {name: b}]\n")
    trainers = [subprocess.Popen([nebula, "train", "job.yaml", "--site", s, f"out={folder}/out-{s}"], **quiet) for s in "ab"]
    children.extend(trainers)
    words = ["--orders", folder + "/a", "--operator", folder + "/ops"]
    os.makedirs(folder + "/out-a", exist_ok=True)
    refused(folder + "/out-a", *words, because="NEBULA_WATCH_ORDER_WORD")
    refused(folder + "/out-a", *words, "--order-word", WORD, "--token", WORD, because="must not be the token")
    refused(folder + "/out-a", *words, "--order-word", WORD, "--token", "another-long-token", "--host", "0.0.0.0", because="--tls")
    refused(folder + "/out-a", "--orders", folder + "/nothing", "--operator", folder + "/ops", "--order-word", WORD, because="nothing")
    page, port = start(folder + "/out-a", *words, env={"NEBULA_WATCH_ORDER_WORD": WORD})
    if WORD in words_of(page.pid): fail("everybody can read the word for orders")
    record = lambda: json.loads(ask(port, "/api/v1/status")[1]).get("run", {}).get("record", 0)
    until(lambda: record() >= 2, "no round was committed", 240)
    samples = lambda: json.loads(ask(port, "/api/v1/facts")[1])["samples"] or ""
    until(lambda: re.search(r"^continued    ", samples(), re.M) and re.search(r"^reference    .*waited", samples(), re.M), "no sample outputs of an evaluation", 120)
    text = subprocess.run([nebula, "watch", folder + "/out-a", "--text"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100", "LINES": "40"}).stdout
    if not re.search(r"^continued    ", text, re.M): fail("the terminal shows no samples:\n" + text)
    orders_refused(port)
    given = lambda: json.loads(ask(port, "/api/v1/orders")[1])["orders"]
    if given(): fail(f"an order was taken: {given()}")
    give = lambda **o: ask(port, "/api/v1/orders", {**ORDER, "Origin": f"http://127.0.0.1:{port}"}, "POST", body=json.dumps(o))
    if give(order="evict", word="nobody")[0] != 409: fail("a site that is no member was evicted")
    until(lambda: give(order="budget", word="50")[0] == 202, "the order budget is not taken")  # the site's folder learns of the record a little later
    until(lambda: given()[0]["state"] == "carried out", "the order budget is not carried out", 120)
    told = lambda kind, words: any(e["kind"] == kind and words in e["text"] for e in json.loads(ask(port, "/api/v1/log")[1])["events"])
    until(lambda: told("order", "50.0 % of the lines"), "the timeline does not tell of the order")
    until(lambda: told("leader", " leads"), "the timeline does not say who leads")
    give(order="end")
    for t in trainers: t.wait(240)
    if any(t.returncode for t in trainers): fail("a site did not end in order")
    until(lambda: json.loads(ask(port, "/api/v1/status")[1])["run"]["ended"], "the page does not show the end")
    subprocess.run([nebula, "report", folder + "/out-a", folder + "/out-b", "--to", folder + "/report.html"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    html = open(folder + "/report.html").read()
    if "<h2>Sample outputs</h2>" not in html or "continued    " not in html or "the operator ended the run" not in html: fail("the report lacks samples or orders")


def wrong_words():
    """Ten wrong words shut the door for orders, also for the right one; looking goes on."""
    folder = out + "/orders"
    _, port = start(folder + "/out-a", "--orders", folder + "/a", "--operator", folder + "/ops", env={"NEBULA_WATCH_ORDER_WORD": WORD})
    codes = [ask(port, "/api/v1/orders", {**ORDER, "Authorization": f"Bearer wrong-word-{i:04}"}, "POST", body="{}")[0] for i in range(12)]
    if codes != [401] * 10 + [429] * 2 or ask(port, "/api/v1/orders", ORDER, "POST", body="{}")[0] != 429: fail(f"wrong words: {codes}")
    if ask(port, "/api/v1/status")[0] != 200: fail("who guesses shuts out who looks")


def tls():
    site = out + "/door"
    subprocess.run([nebula, "site", "init", "door"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=out)
    p, port = start(out, "--tls", site)
    fingerprint = p.stdout.readline().split()[-1]
    context = ssl.create_default_context(cafile=site + "/watch.crt")
    until(lambda: ask(port, "/healthz", tls=context)[0] == 200, "TLS")
    with socket.create_connection(("127.0.0.1", port)) as s, context.wrap_socket(s, server_hostname="localhost") as t:
        import hashlib
        seen = hashlib.sha256(t.getpeercert(True)).hexdigest().upper()
    if seen != fingerprint.replace(":", ""): fail("another certificate than it says")
    if os.stat(site + "/watch.key").st_mode & 0o077: fail("others may read the key")


def slow_clients(port):
    """Idle connections, a request a byte at a time, viewers that do not read: others are answered."""
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
    for s in crowd[:300]: s.sendall(b"GET / HT")
    deaf = []
    for _ in range(20):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", port))
        s.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deaf.append(s)
    for path in ("/", "/api/v1/status", "/metrics", "/api/v1/history", "/healthz"):
        if ask(port, path)[0] != 200: fail(path + " is not answered beside 1,000 idle connections")
    # A byte now and then does not keep a place for ever.
    end, closed = time.time() + 120, False
    while not closed and time.time() < end:
        try:
            crowd[0].sendall(b"x")
            crowd[0].setblocking(False)
            try: closed = crowd[0].recv(1) == b""
            except BlockingIOError: pass
            crowd[0].setblocking(True)
        except OSError:
            closed = True
        time.sleep(0.5)
    if not closed: fail("a request that never ends keeps its place")
    for s in crowd + deaf: s.close()


def words_of(pid):
    """Of a process; "": it has ended."""
    try: return open(f"/proc/{pid}/cmdline").read()
    except OSError: return ""


def beside_a_training():
    """`train --watch`: the page ends with the training, however that ends. Its alert, which may be secret, is not among its words."""
    folder = out + "/beside"
    os.mkdir(folder)
    shutil.copy(os.path.join(here, "../../docs/watch.md"), folder + "/text")
    with open(folder + "/job.yaml", "w") as f:
        f.write("name: one\ntask: causal\ncache: data\ntokenizer: {type: bpe, vocab: 300, lines: 1000}\nmodel: {family: gpt2, hidden: 32, layers: 1, heads: 2}\n"
                "train: {steps: 100000000, tokens: 64, max_len: 32, lr: 1e-3, log_every: 1000, save_every: 100000, threads: 1}\ndata: [{file: text}]\nwatch: {alert: 'true secret'}\n")
    for how in (signal.SIGKILL, signal.SIGTERM):
        p = subprocess.Popen([nebula, "train", "job.yaml", "--watch", "0", f"out={folder}/run"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder)
        children.append(p)
        port = next((int(m.group(1)) for m in (re.search(r"^watching .*:(\d+)/$", l) for l in p.stdout) if m), None)
        if not port: fail("train --watch does not say where its page is")
        until(lambda: "training" in ask(port, "/api/v1/status")[1], "the page does not show the training")
        page = open(f"/proc/{p.pid}/task/{p.pid}/children").read().split()
        if len(page) != 1: fail(f"train --watch has the children {page}")
        if "secret" in words_of(page[0]): fail("everybody can read the alert")
        p.send_signal(how)
        p.wait(60)
        until(lambda: not words_of(page[0]), f"the page outlives a training that got {how}", 20)


def main():
    try:
        port, fake = one_status()
        the_past(port)
        with concurrent.futures.ThreadPoolExecutor() as pool:  # who waits for a server's patience does so beside the rest
            waiting = pool.submit(slow_clients, port)
            alerts_and_text()
            the_door(port)
            tls()
            orders()
            wrong_words()
            waiting.result()
        beside_a_training()
        print("watch_server: ok")
    finally:
        for c in children: c.send_signal(signal.SIGCONT), c.terminate()
        for c in children:
            try: c.wait(60)
            except subprocess.TimeoutExpired: c.kill()
        shutil.rmtree(out, ignore_errors=True)


main()
