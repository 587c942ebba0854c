"""Draws the pictures of the README as SVG from the output of a run: RUN, a folder with the JSON of `inspect`, and the
folder to write to. Colours are the tokens of the pages."""

import base64
import json
import math
import pathlib
import re
import struct
import sys
import textwrap
import zlib
from html import escape

TOKENS = pathlib.Path("src/view/assets/tokens.css").read_text()
MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
WIDTH = 880


class Theme:
    """The colours of light (0) or dark (1)."""

    def __init__(self, which):
        pairs = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", TOKENS)
        self.colors = {name: pair[which] for name, *pair in pairs}
        heat = [self.colors[f"heat-{step}"] for step in range(10)]
        self.heat = [tuple(int(color[at : at + 2], 16) for at in (1, 3, 5)) for color in heat]

    def __getitem__(self, token):
        return self.colors[token]

    def weight(self, weight):
        """The red, green and blue of a weight from 0 to 1: the scale is one of its square root."""
        at = math.sqrt(min(max(weight, 0), 1)) * 9
        below = min(int(at), 8)
        return tuple(
            round(a + (b - a) * (at - below)) for a, b in zip(self.heat[below], self.heat[below + 1])
        )


def on(color):
    """Black or white, whichever is further from a colour."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def css(color):
    return "#%02x%02x%02x" % color


def text(x, y, words, fill, size, more="", font=SANS):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" font-family="{font}" '
        f'xml:space="preserve" {more}>{escape(words)}</text>\n'
    )


def word(token):
    """A token without the space before it; a token that is white space, as a sign."""
    return token.strip() or token.replace(" ", "·").replace("\n", "↵")


def picture(name, out, theme_name, theme, height, title, body, style=""):
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img">\n<title>{escape(title)}</title>\n<style>{style}</style>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{theme["paper"]}"/>\n{body}</svg>\n'
    )
    (out / f"{name}-{theme_name}.svg").write_text(svg)


def samples(run):
    parts = re.split(r"===== step (\d+) =====\n", (run / "samples.txt").read_text())
    return {int(step): words.strip() for step, words in zip(parts[1::2], parts[2::2])}


def train(run, theme):
    """The loss falling while samples turn from noise into sentences; without animation, the end of it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["train_loss"]) for row in rows if "train_loss" in row]
    estimates = {row["step"]: row["val_loss_estimate"] for row in rows if "val_loss_estimate" in row}
    written = samples(run)
    last = max(written)
    wanted = [0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0]
    frames = sorted({min(written, key=lambda step: abs(step - share * last)) for share in wanted})
    left, right, top, bottom = 56, 400, 92, 330
    high, low = math.log(losses[0][1]), math.log(min(loss for _, loss in losses))
    x = lambda step: left + (right - left) * step / last
    y = lambda loss: top + (bottom - top) * (high - math.log(loss)) / (high - low)
    body = text(28, 42, "$ tinderbox train quickstart", theme["ink"], 17, font=MONO)
    body += text(left, 78, "training loss, nats per token, on a logarithmic axis", theme["quiet"], 13)
    path = "".join(f"{'L' if i else 'M'}{x(step):.1f} {y(loss):.1f}" for i, (step, loss) in enumerate(losses))
    body += f'<path d="{path}" fill="none" stroke="{theme["spark"]}" stroke-width="2.5" stroke-linejoin="round"/>\n'
    body += (
        f'<rect class="cover" x="{left}" y="{top - 8}" width="{right - left + 4}" height="{bottom - top + 16}" '
        f'fill="{theme["paper"]}"/>\n'
    )
    for loss in [6, 4, 2]:
        body += f'<path d="M{left} {y(loss):.1f}H{right}" stroke="{theme["line"]}"/>\n'
        body += text(left - 8, y(loss) + 4, str(loss), theme["quiet"], 12, 'text-anchor="end"')
    for step in [0, last // 2, last]:
        body += text(x(step), bottom + 26, f"{step:,}", theme["quiet"], 12, 'text-anchor="middle"')
    body += text((left + right) / 2, bottom + 46, "steps", theme["quiet"], 12, 'text-anchor="middle"')
    seconds = 1.7 * len(frames)
    share = lambda i: 100 * i / (len(frames) + 1)  # the last frame stays for two
    style, cover = "", []
    for i, step in enumerate(frames):
        is_last = i + 1 == len(frames)
        end = 100 if is_last else share(i + 1)
        style += f".f{i}{{opacity:{1 if is_last else 0}}}"
        begin, just_before = share(i), max(share(i) - 0.01, 0)
        hidden = "" if i == 0 else f"0%,{just_before:.2f}%{{opacity:0}}"
        after = "" if is_last else f"{end:.2f}%,100%{{opacity:0}}"
        style += f"@keyframes f{i}{{{hidden}{begin:.2f}%,{end - 0.01:.2f}%{{opacity:1}}{after}}}"
        cover.append(f"{begin:.2f}%{{transform:translateX({x(step) - left:.1f}px)}}")
        group = text(440, 78, f"step {step:,}", theme["accent"], 15, 'font-weight="600"')
        if step in estimates:
            group += text(852, 78, f"validation loss {estimates[step]:.2f}", theme["quiet"], 13, 'text-anchor="end"')
        for row, line in enumerate(textwrap.wrap(written[step], 42)[:11]):
            group += text(440, 108 + 24 * row, line, theme["ink"], 16, font=MONO)
        body += f'<g class="f{i}">\n{group}</g>\n'
    off = right - left + 10
    style += f".cover{{transform:translateX({off}px)}}"
    style += f"@keyframes cover{{{''.join(cover)}{100 - share(1):.2f}%,100%{{transform:translateX({off}px)}}}}"
    animated = f".cover{{animation:cover {seconds:.1f}s linear infinite}}" + "".join(
        f".f{i}{{animation:f{i} {seconds:.1f}s step-end infinite}}" for i in range(len(frames))
    )
    style += f"@media (prefers-reduced-motion:no-preference){{{animated}}}"
    return 392, "A loss falls while samples turn from noise into sentences", body, style


def png(pixels):
    """Rows of (red, green, blue) as a PNG in base 64."""
    chunk = lambda kind, data: (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    raw = b"".join(b"\0" + bytes(channel for pixel in row for channel in pixel) for row in pixels)
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def heads(work, theme):
    """All heads, and what the one that looks back at the opening quote most sees from the last token."""
    data = json.loads((work / "attention.json").read_text())
    tokens, weights = data["tokens"], data["weights"]
    n_layers, n_heads, n = len(weights), len(weights[0]), len(tokens)
    quote = max(at for at, token in enumerate(tokens) if token.strip() == '"')
    places = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    layer, head = max(places, key=lambda place: weights[place[0]][place[1]][n - 1][quote])
    row = weights[layer][head][n - 1]
    share = f"{100 * row[quote]:.0f} % of what it sees from “{word(tokens[-1])}”"
    sentence = f"Head {layer}.{head} looks back at the opening quote: {share}"
    body, letter, top = "", 10.3, 62
    widths = [letter * len(word(token)) + 8 for token in tokens]
    gaps = [0 if at == 0 else 5 if token.startswith(" ") else 1 for at, token in enumerate(tokens)]
    start = (WIDTH - sum(widths) - sum(gaps)) / 2
    lefts = [start + sum(widths[:at]) + sum(gaps[: at + 1]) for at in range(n)]
    middles = [left + width / 2 for left, width in zip(lefts, widths)]
    for at, token in enumerate(tokens):
        color = theme.weight(row[at])
        edge = f' stroke="{theme["accent"]}" stroke-width="2"' if at == n - 1 else ""
        body += (
            f'<rect x="{lefts[at]:.1f}" y="{top}" width="{widths[at]:.1f}" height="34" rx="3" '
            f'fill="{css(color)}"{edge}/>\n'
        )
        body += text(middles[at], top + 23, word(token), on(color), 17, 'text-anchor="middle"', MONO)
    tip, end = middles[quote], middles[-1]
    body += (
        f'<path d="M{end:.1f} {top - 4}C{end - 40:.1f} 12 {tip + 40:.1f} 12 {tip:.1f} {top - 4}m-2 -10l2 10l9 -5" '
        f'fill="none" stroke="{theme["accent"]}" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"/>\n'
    )
    body += text(WIDTH / 2, top + 70, sentence, theme["ink"], 17, 'text-anchor="middle"')
    size, gap = 92, 10
    per_row = 8
    left = (WIDTH - per_row * size - (per_row - 1) * gap) / 2
    for index, (l, h) in enumerate(places):
        x, y = left + index % per_row * (size + gap), 156 + index // per_row * (size + 30)
        pixels = [
            [theme.weight(weights[l][h][q][k]) if k <= q else rgb(theme["paper"]) for k in range(n)] for q in range(n)
        ]
        body += (
            f'<image x="{x:.1f}" y="{y}" width="{size}" height="{size}" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{png(pixels)}"/>\n'
        )
        is_it = (l, h) == (layer, head)
        if is_it:
            body += (
                f'<rect x="{x - 3:.1f}" y="{y - 3}" width="{size + 6}" height="{size + 6}" rx="4" fill="none" '
                f'stroke="{theme["accent"]}" stroke-width="2"/>\n'
            )
        color = theme["accent" if is_it else "quiet"]
        body += text(x + size / 2, y + size + 18, f"head {l}.{h}", color, 12.5, 'text-anchor="middle"')
    rows = math.ceil(len(places) / per_row)
    return 156 + rows * (size + 30) + 12, sentence, body, ""


def rgb(color):
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


def lens(work, theme):
    """The likeliest next token by each layer, for the last tokens."""
    data = json.loads((work / "lens.json").read_text())
    shown = 8
    positions = data["positions"][-shown:]
    tokens = [token if isinstance(token, str) else token["token"] for token in data["tokens"]][-shown:]
    best = lambda position: [stage["top"][0] for stage in position["stages"] if stage["layer"] is not None]
    end = [guess["token"] for guess in best(positions[-1])]
    names = [f"layer {layer}" for layer in range(len(end))]
    turn = next(at for at in range(len(end)) if all(token == end[-1] for token in end[at:]))
    assert turn > 0, "the first layer already knows: choose another text"
    spoken = {".": "a full stop", ',"': "a comma and the closing quote"}
    before, after = (spoken.get(token, f"“{word(token)}”") for token in (end[turn - 1], end[-1]))
    sentence = f"After “{word(tokens[-1])}”, {names[turn - 1]} expects {before}, and {names[turn]} {after}"
    left, cell, height, top = 100, 94, 46, 112
    body = text(left, 40, "The next token, as each layer guesses it", theme["ink"], 19, 'font-weight="600"')
    body += text(left, 66, sentence, theme["quiet"], 15)
    for column, (token, position) in enumerate(zip(tokens, positions)):
        x = left + column * cell
        is_end = column == shown - 1
        color = theme["accent" if is_end else "ink"]
        body += text(x + cell / 2 - 1, top - 10, word(token), color, 18, 'text-anchor="middle"', MONO)
        for stage, guess in enumerate(best(position)):
            heat = theme.weight(guess["probability"])
            y = top + stage * height
            edge = f' stroke="{theme["accent"]}" stroke-width="2"' if is_end else ""
            body += f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{height - 2}" rx="4" fill="{css(heat)}"{edge}/>\n'
            body += text(x + cell / 2 - 1, y + 21, word(guess["token"]), on(heat), 17, 'text-anchor="middle"', MONO)
            share = f"{100 * guess['probability']:.0f} %"
            body += text(x + cell / 2 - 1, y + 37, share, on(heat), 12, 'text-anchor="middle"')
    for stage, name in enumerate(names):
        body += text(left - 12, top + stage * height + 27, name, theme["quiet"], 14, 'text-anchor="end"')
    return top + len(names) * height + 20, sentence, body, ""


def main():
    run, work, out = map(pathlib.Path, sys.argv[1:])
    for which, name in enumerate(["light", "dark"]):
        theme = Theme(which)
        for kind, drawn in [("train", train(run, theme)), ("heads", heads(work, theme)), ("lens", lens(work, theme))]:
            height, title, body, style = drawn
            picture(kind, out, name, theme, height, title, body, style)


if __name__ == "__main__":
    main()
