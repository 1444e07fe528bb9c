"""Checks the page of `attnres serve` in headless Chromium: python tests/page/page_check.py

    apt-get install chromium; pip install -r tests/page/requirements.txt
    python tests/page/page_check.py                             # against a mock server
    python tests/page/page_check.py --attnres build/attnres     # and against the program
    python tests/page/page_check.py --pictures FOLDER           # and keeps pictures to look at

What the page says is compared with the weights that were served, token by token and cell by cell.
"""

import argparse
import json
import re
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "clients"))

from browser import Browser
from checks import Checks
from mock_server import PAGE, TEXT, Mock, sites_of, weights_of
from server import Server

CTRL, SHIFT = 2, 8
PROMPT = "Wie schön"  # 10 bytes, 9 characters
DONE = "document.querySelector('#status').textContent.includes(' s: ')"

check = Checks("page_check")


def text_of(page, selector):
    return page.see(f"document.querySelector({json.dumps(selector)}).innerText")


def says(words, weights, site, source):
    """Whether the description has the share that was served, to the last digit it shows."""
    found = re.search(r"([0-9.]+) % of what this token's site reads", words)
    return bool(found) and abs(float(found[1]) - 100 * weights[site][source]) < 0.0501


def cell(site, source):
    return f'[data-site="{site}"][data-source="{source}"]'


def token(index):
    return f'[data-i="{index}"]'


def write(page, prompt, max_tokens):
    page.until("model !== null", "the model")
    page.type("#prompt", prompt)
    page.see(f"document.querySelector('#max_tokens').value = {max_tokens}")
    page.see("document.querySelector('#seed').value = 1")
    page.press("Enter", CTRL)


def shown(page):
    """The strip's text as it was written."""
    return page.see("[...document.querySelectorAll('#strip [data-i]')].map(n => n.textContent.replace(/↵/g, '')).join('')")


def no_sideways(page, width):
    page.resize(width)
    page.settle()
    return page.see("document.documentElement.scrollWidth <= window.innerWidth && window.innerWidth") == width


def check_looking(page, sites, weights, count):
    """Pointer and keyboard: the description has the weights of the token and the cell they are at."""
    last = len(sites) - 1
    for site, source, index in ((3, 1, 2), (last, len(sites[last]["sources"]) - 1, count - 2), (5, 0, 0)):
        page.point(token(index), click=True)
        page.point(cell(site, source))
        words = text_of(page, "#words")
        check(says(words, weights[index], site, source), f"pointing at token {index}, site {site}, source {source}: {words}")
        check(not says(words, weights[index + 1], site, source), "control: the next token's weights are refused")
        check(sites[site]["sources"][source] in words, f"the source's name is said: {words}")
    page.focus(token(3))
    page.press("ArrowRight")
    check(page.see("document.activeElement.dataset.i") == "4", "an arrow key moves to the next token")
    page.focus(cell(5, 1))
    check(says(text_of(page, "#words"), weights[4], 5, 1), "focus on a cell describes it, for the token chosen by keyboard")
    page.press("ArrowLeft")
    check(says(text_of(page, "#words"), weights[4], 5, 0), "an arrow key moves to the cell beside")
    page.press("ArrowDown")
    check(says(text_of(page, "#words"), weights[4], 7, 0), "and to the row below")
    page.press("Enter")
    check(sites[7]["sources"][0] in text_of(page, "#colour-words"), "Enter colours the text by the cell")
    # Darker is more: the order of the colours is the order of the weights.
    reds = page.see("tokens.map(t => t.node.style.background.match(/\\d+/)).map(m => m ? +m[0] : null)")
    order = sorted(range(count - 1), key=lambda i: weights[i][7][0])
    check(reds[order[0]] > reds[order[-1]], "the strip's colours follow the weights")
    page.press("Tab")
    check(page.see("document.activeElement.id") == "save-svg", "Tab leaves the picture")


def check_completion(browser, mock, pictures):
    page = browser.open(mock.url)
    write(page, PROMPT, 60)
    page.until(DONE, "the end of the text")
    page.settle()
    count = len(PROMPT.encode()) + 60
    check(shown(page) == PROMPT + TEXT.encode()[:60].decode(), f"the text is shown whole: {shown(page)!r}")
    check(page.see("document.querySelectorAll('#strip [data-i]').length") == count, "every token is there")
    check(page.see("document.querySelectorAll('#strip b, #strip script').length") == 0, "markup in the text stays text")
    page.until("tokens.at(-1).weights", "the last token's weights")
    weights = [weights_of(sites_of("normal"), i) for i in range(count)]
    check_looking(page, sites_of("normal"), weights, count)
    page.point(cell(9, 1))  # feed-forward 5: the embedding, blocks 1 and 2, the partial sum
    check("the sum of the outputs of layers 1 and 2" in text_of(page, "#words"), "what a block is made of is said")
    page.point(cell(9, 3))
    check("the output of attention 5" in text_of(page, "#words"), "what the partial sum is made of is said")
    page.see("(c => { c.value = 'probability'; c.onchange(); })(document.querySelector('#colour'))")
    page.settle()
    check(page.see(f"tokens[{len(PROMPT.encode())}].node.style.background !== '' && tokens[0].node.style.background === ''"),
          "probabilities colour what was written, not what was given")
    page.point(token(len(PROMPT.encode()) + 3), click=True)
    words = text_of(page, "#token-words")
    check("<img>" in words, "other likely tokens are told, as text")
    check(words.count(f"“{TEXT[3]}”") == 1, f"the token itself is not among them: {words}")
    # What is saved: caught where the page hands it to the browser.
    page.see("window.saved = []; HTMLAnchorElement.prototype.click = function() { saved.push(fetchText(this.href)); };"
             " const blobs = new Map(); const real = URL.createObjectURL;"
             " URL.createObjectURL = blob => { const url = real.call(URL, blob); blobs.set(url, blob); return url; };"
             " window.fetchText = url => blobs.get(url).text();"
             " document.querySelector('#save-svg').click(); document.querySelector('#save-json').click();")
    svg, everything = page.see("Promise.all(saved)")
    parsed = page.see(f"new DOMParser().parseFromString({json.dumps(svg)}, 'image/svg+xml').querySelectorAll('parsererror').length")
    check(parsed == 0 and svg.count("<rect") == 1 + sum(len(s["sources"]) for s in sites_of("normal")), "the saved picture is SVG that stands by itself")
    kept = json.loads(everything)["tokens"]
    check(all(abs(a - b) < 1e-12 for i in range(count) for x, y in zip(kept[i]["weights"], weights[i]) for a, b in zip(x, y)),
          "the saved JSON has every weight")
    check(page.see("[...document.querySelectorAll('input,textarea,select')].every(n => n.labels?.length) "
                   "&& [...document.querySelectorAll('button')].every(n => n.innerText || n.hidden || !n.offsetParent)"), "everything has a label")
    check(page.see("document.querySelectorAll('[aria-live]').length") == 1, "only the status is read out")
    heights = []
    for index in (1, len(PROMPT.encode()) + 3, count - 1, 2):
        page.point(token(index), click=True)
        page.point(cell(index % 9, 0))
        heights.append(page.see("document.documentElement.scrollHeight"))
    check(heights == sorted(heights), f"the page never shrinks under the pointer: {heights}")
    for width in (1600, 1200, 768, 360):
        check(no_sideways(page, width), f"nothing sticks out at {width} px")
    if pictures:
        page.see("(c => { c.value = 'weight'; c.onchange(); })(document.querySelector('#colour'))")
    for name, width, scheme in (("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 360, "light")):
        page.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        page.resize(width)
        page.settle()
        bright = sum(page.see("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"))
        check((bright < 200) == (scheme == "dark"), f"{name}: the page is {scheme}")
        check(page.see("getComputedStyle(document.querySelector('.panel rect')).transitionDuration") == "0s", "reduced motion is kept to")
        if pictures:
            (pictures / f"{name}.png").write_bytes(page.picture())
    sources = {url for url in page.requests if not url.startswith((mock.url + "/", "data:"))}
    check(not sources, f"requests to its own origin only: {sources}")
    check(not page.complaints, f"nothing on the console: {page.complaints}")
    page.close()


def check_stop(browser, mock):
    mock.mode = "slow"
    page = browser.open(mock.url)
    write(page, "On", 40)
    page.until("tokens.length === 2 + 5 && tokens.at(-1).node", "five tokens")
    check(page.see("tokens.findLastIndex(t => t.weights) === 5 && tokens[5].node.getAttribute('aria-selected') === 'true'"),
          "while it writes, the newest token with weights is chosen")
    check(page.see("document.querySelector('#go').disabled"), "one text at a time")
    page.point("#stop", click=True)
    page.until("document.querySelector('#status').textContent.includes('Stopped after 5 tokens')", "that it stopped")
    check(mock.hung_up.wait(20), "stopping ends the request")
    check(shown(page) == "On" + TEXT[:5], "the text is kept")
    check(not page.complaints, f"nothing on the console: {page.complaints}")
    page.close()
    mock.mode = "normal"


def check_trouble(browser, mock, pictures):
    page = browser.open(mock.url)
    mock.mode = "refuses"
    write(page, "On", 40)
    page.until("!document.querySelector('#trouble').hidden", "the error")
    said = text_of(page, "#trouble-text")
    check("429" in said and "256 sequences wait already <i>" in said, f"the server's error is said: {said}")
    mock.mode = "dies"
    page.point("#retry", click=True)
    page.until("document.querySelector('#status').textContent.includes('Cut off after 20 tokens')", "the end in the middle")
    check("went away" in text_of(page, "#trouble-text"), "a server that went away is told")
    check(shown(page) == "On" + TEXT[:20], "what came is kept")
    if pictures:
        (pictures / "trouble.png").write_bytes(page.picture())
    mock.stop()
    page.point("#retry", click=True)
    page.until("document.querySelector('#trouble-text').textContent.includes('does not answer')", "that nobody answers")
    page.settle()
    check(shown(page) == "On" + TEXT[:20] and page.see("document.querySelector('#prompt').value") == "On", "text and prompt are still there")
    again = Mock(port=int(mock.url.rsplit(":", 1)[1]))
    page.point("#retry", click=True)
    page.until(DONE, "the text, after the server came back")
    page.settle()
    check(shown(page).startswith("On" + TEXT[:30]), "the same request again, once the server is back")
    check(page.see("document.querySelector('#trouble').hidden"), "and the message goes")
    page.close()
    return again


def check_key(browser, mock):
    mock.mode = "key"
    page = browser.open(mock.url)
    page.until("!document.querySelector('#key-form').hidden", "a field for the key")
    page.type("#key", "secret")
    page.press("Enter")
    page.until("model !== null", "the model, with the key")
    check(page.see("sessionStorage.length === 1 && localStorage.length === 0 && document.cookie === ''"), "the key is kept in the tab only")
    check(page.see("document.querySelector('#trouble').hidden"), "the field goes")
    page.see("sessionStorage.clear()")
    page.close()
    mock.mode = "normal"


def check_residual(browser, mock):
    mock.mode = "residual"
    page = browser.open(mock.url)
    write(page, "On", 30)
    page.until(DONE, "the end of the text")
    page.settle()
    check("plain sum" in text_of(page, "#none"), "a residual model: there are no weights, and why")
    check(page.see("document.querySelector('#depth').hidden && document.querySelector('#colour').value === 'probability'"), "only probabilities colour the text")
    check(shown(page) == TEXT.encode()[:30].decode() and text_of(page, "#strip").startswith("On"), "its text is shown")
    check(not page.complaints, f"nothing on the console: {page.complaints}")
    page.close()
    mock.mode = "normal"


def check_full(browser, mock, pictures):
    mock.mode = "full"
    page = browser.open(mock.url)
    write(page, "On", 30)
    page.until(DONE, "the end of the text")
    page.settle()
    page.point(token(4), click=True)
    page.point(cell(9, 6))
    words, weights = text_of(page, "#words"), weights_of(sites_of("full"), 4)
    check(says(words, weights, 9, 6) and "the output of layer 3's feed-forward" in words, f"Full AttnRes: {words}")
    check(page.see("document.querySelectorAll('[role=gridcell]').length") == sum(len(s["sources"]) for s in sites_of("full")), "a cell for every weight")
    check(no_sideways(page, 360), "nothing sticks out at 360 px")
    if pictures:
        (pictures / "full.png").write_bytes(page.picture())
    page.close()
    mock.mode = "normal"


def chat(page, text):
    page.until("model !== null", "the model")
    if not page.see("document.querySelector('#chat-mode').checked"):
        page.point("#chat-mode", click=True)
    page.see("document.querySelector('#max_tokens').value = 30")
    page.type("#prompt", text)
    page.press("Enter")
    page.until(f"!busy && turns.length % 2 === 0 && {DONE}", "the answer")
    page.settle()


def check_chat(browser, mock, pictures):
    page = browser.open(mock.url)
    chat(page, "Good day <u>")
    chat(page, "And now?")
    turns = page.see("[...document.querySelectorAll('#turns li')].map(n => n.textContent)")
    check(len(turns) == 4 and turns[0] == "YouGood day <u>" and turns[3].startswith("ModelGood <b>"), f"a conversation with turns: {turns}")
    asked = [body for path, body in mock.asked if path == "/v1/chat/completions"][-1]
    check([m["role"] for m in asked["messages"]] == ["user", "assistant", "user"], "the turns before are sent")
    check(shown(page).count("\u2014") == 2 and "\ufffd" not in shown(page), "characters of several tokens are whole in the transcript too")
    check("User: And now?" in shown(page) and "User:" in text_of(page, "#chat-note"), "the transcript is shown as the model reads it")
    index = len("User: Good day <u>\n")
    page.point(token(index), click=True)
    page.point(cell(5, 1))
    check(says(text_of(page, "#words"), weights_of(sites_of("normal"), index), 5, 1), "a token of the conversation has its weights")
    if pictures:
        (pictures / "chat.png").write_bytes(page.picture())
    page.point("#anew", click=True)
    check(page.see("document.querySelectorAll('#turns li').length") == 0, "a new conversation is empty")
    check(not page.complaints, f"nothing on the console: {page.complaints}")
    page.close()


def check_refused_chat(browser, mock):
    page = browser.open(mock.url)
    chat(page, "First")
    mock.mode = "refuses"
    page.type("#prompt", "Second")
    page.press("Enter")
    page.until("!busy && !document.querySelector('#trouble').hidden", "the refusal")
    page.settle()
    check(page.see("turns.length") == 2 and page.see("document.querySelectorAll('#turns li').length") == 2, "a refused message is no turn")
    check(page.see("document.querySelector('#prompt').value") == "Second", "it can be changed and sent again")
    mock.mode = "normal"
    page.point("#retry", click=True)
    page.until(f"!busy && turns.length === 4 && {DONE}", "the answer, asked for again")
    check(page.see("document.querySelector('#prompt').value") == "", "the message that was sent again is gone")
    mock.mode = "silent"
    page.type("#prompt", "Third")
    page.press("Enter")
    page.until("!busy && turns.length === 6", "an answer without a token")
    mock.mode = "normal"
    chat(page, "Fourth")
    asked = [body for path, body in mock.asked if path == "/v1/chat/completions"][-1]["messages"]
    check([m["role"] for m in asked] == ["user", "assistant"] * 3 + ["user"], f"the roles alternate: {asked}")
    check([m["content"] for m in asked[::2]] == ["First", "Second", "Third", "Fourth"], f"each message is there once: {asked}")
    page.close()


def check_small_context(browser, mock):
    mock.mode = "small"
    page = browser.open(mock.url)
    page.until("model !== null", "the model")
    page.type("#prompt", "On")
    page.press("Enter", CTRL)
    page.until(DONE, "a text, without a field that was changed")
    check(page.see("run.written") == 20, "half of the context is written")
    page.close()
    mock.mode = "normal"


def check_wordless(browser, mock):
    mock.mode = "wordless"
    page = browser.open(mock.url)
    page.until("model !== null", "the model")
    check(page.see("document.querySelector('#chat-mode').disabled"), "without a tokenizer there is no conversation")
    page.close()
    mock.mode = "normal"


def check_time(browser, mock):
    page = browser.open(mock.url)
    page.until("model !== null", "the model")
    # A clock that the first token moves: time counts from the request on.
    page.see("window.clock = 0; performance.now = () => clock; const real = take; take = (...given) => { clock += 2000; real(...given); }; 0")
    write(page, "On", 1)
    page.until(DONE, "the end of the text")
    said = text_of(page, "#status")
    check(said.startswith("1 token in 2.0 s"), f"the first token's time counts: {said}")
    page.close()


def check_program(browser, program, model, pictures):
    """The same from the program, with a trained model."""
    with Server(program, model) as server:
        url = server.url
        check(server.get("/") == (200, PAGE.read_bytes().decode()), "the program gives this page")
        page = browser.open(url)
        write(page, "To be, or nöt", 60)
        page.until(DONE, "the end of the text", 120)
        page.until("tokens.at(-1).weights", "the last token's weights")
        page.settle()
        ids, text = page.see("tokens.map(t => t.id)"), page.see("run.text")
        check(shown(page) == "To be, or nöt" + text, f"the program's text is shown whole: {shown(page)!r}")
        _, served = server.post("/v1/depth", {"ids": ids})
        check_looking(page, served["sites"], served["weights"], len(ids))
        check(no_sideways(page, 360), "nothing sticks out at 360 px")
        if pictures:
            page.resize(1400)
            page.media(prefers_reduced_motion="reduce")
            page.settle()
            (pictures / "program.png").write_bytes(page.picture())
        check(not page.complaints, f"nothing on the console: {page.complaints}")
        check(all(one.startswith((url + "/", "data:")) for one in page.requests), "requests to its own origin only")
        page.close()
        page = browser.open(url)
        chat(page, "Who is there?")
        check(page.see("turns.length") == 2 and page.see("tokens.filter(t => t.weights).length") > 20, "a conversation with the program")
        page.close()
        page = browser.open(url)
        write(page, "The", 250)
        page.until("tokens.length > 10", "some tokens")
        page.point("#stop", click=True)
        page.until("/Stopped|as many/.test(document.querySelector('#status').textContent)", "that it stopped")
        server.stop()
        page.point("#go", click=True)
        page.until("document.querySelector('#trouble-text').textContent.includes('does not answer')", "that nobody answers")
        check(len(shown(page)) > 10, "the program going away leaves the text")
        page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attnres", metavar="PROGRAM")
    parser.add_argument("--model", default=str(PAGE.parents[2] / "models" / "tiny-shakespeare"))
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    size = PAGE.stat().st_size
    check(size < 200_000, f"the page has {size} bytes")
    check(not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage", PAGE.read_text()), "data is never markup")
    browser, mock = Browser(), Mock()
    try:
        check_completion(browser, mock, options.pictures)
        check_stop(browser, mock)
        check_key(browser, mock)
        check_residual(browser, mock)
        check_full(browser, mock, options.pictures)
        check_chat(browser, mock, options.pictures)
        check_refused_chat(browser, mock)
        check_small_context(browser, mock)
        check_wordless(browser, mock)
        check_time(browser, mock)
        mock = check_trouble(browser, mock, options.pictures)
        if options.attnres:
            check_program(browser, options.attnres, options.model, options.pictures)
    except (TimeoutError, RuntimeError) as error:
        check(False, str(error))
    finally:
        mock.stop()
        browser.close()
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
