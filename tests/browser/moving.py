"""A moving picture of screenshots, as animated WebP, which browsers and code-hosting pages play.

Chromium compresses the frames (lossless WebP, of each only what has changed since the one before).
What is left to do is to put them into a file, as
https://developers.google.com/speed/webp/docs/riff_container says.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from playwright.sync_api import Browser

COLORS = 128  # of a frame; more make the file larger, fewer are seen

# What changed since the frame before, as a WebP whose other pixels are transparent, and where it
# lies; null if nothing did. Rare colours become the nearest of the frequent ones.
CHANGED = """async ([png, width, height, colors]) => {
    const blob = await (await fetch("data:image/png;base64," + png)).blob();
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", {willReadFrequently: true});
    context.drawImage(await createImageBitmap(blob), 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
    const counts = new Map();
    for (const color of pixels) counts.set(color, (counts.get(color) ?? 0) + 1);
    const kept = [...counts].sort((a, b) => b[1] - a[1]).slice(0, colors).map(([color]) => color);
    const distance = (a, b) => Math.hypot(...[0, 8, 16].map(s => (a >> s & 255) - (b >> s & 255)));
    const closer = (color) => (a, b) => distance(color, a) <= distance(color, b) ? a : b;
    const nearest = new Map([...counts.keys()].map(color => [color, kept.reduce(closer(color))]));
    for (let i = 0; i < pixels.length; i++) pixels[i] = nearest.get(pixels[i]);
    const last = globalThis.last ?? new Uint32Array(pixels.length);
    globalThis.last = pixels.slice();
    let [left, top, right, bottom] = [width, height, 0, 0];
    for (let y = 0, i = 0; y < height; y++)
        for (let x = 0; x < width; x++, i++)
            if (pixels[i] === last[i]) pixels[i] = 0;
            else {
                left = Math.min(left, x), right = Math.max(right, x + 1);
                top = Math.min(top, y), bottom = Math.max(bottom, y + 1);
            }
    if (left >= right) return null;
    left -= left % 2, top -= top % 2;  // the file has no odd places
    const changes = new ImageData(new Uint8ClampedArray(pixels.buffer), width, height);
    const part = new OffscreenCanvas(right - left, bottom - top);
    part.getContext("2d").putImageData(changes, -left, -top);
    const webp = await part.convertToBlob({type: "image/webp", quality: 1});
    const bytes = new Uint8Array(await webp.arrayBuffer());
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return [left, top, part.width, part.height, btoa(text)];
}"""


class Frame(NamedTuple):
    """A screenshot (PNG), and the milliseconds for which it is seen."""

    png: bytes
    milliseconds: int


def moving(browser: Browser, frames: Sequence[Frame], colors: int = COLORS) -> bytes:
    """The frames, all of one size, as an animated WebP that starts again at its end."""
    width, height = struct.unpack(">II", frames[0].png[16:24])  # of the header of a PNG
    page = browser.new_page()
    parts: list[tuple[list[int], int, bytes]] = []
    for frame in frames:
        png = base64.b64encode(frame.png).decode()
        if made := page.evaluate(CHANGED, [png, width, height, colors]):
            *place, webp = made
            parts.append((place, frame.milliseconds, _pixels(base64.b64decode(webp))))
        else:
            place, before, same = parts[-1]
            parts[-1] = place, before + frame.milliseconds, same
    page.close()
    flags = 0x02 | 0x10  # it moves, and pixels may be transparent
    body = _chunk(b"VP8X", bytes([flags, 0, 0, 0]) + _three(width - 1) + _three(height - 1))
    body += _chunk(b"ANIM", bytes(6))  # on nothing, and without end
    for (left, top, wide, high), lasts, pixels in parts:
        numbers = (left // 2, top // 2, wide - 1, high - 1, lasts)
        # 0: drawn over what is there, and left there
        body += _chunk(b"ANMF", b"".join(map(_three, numbers)) + b"\0" + pixels)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def chunks(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The named pieces that follow the first 12 bytes of a WebP file."""
    at = 12
    while at < len(body):
        name, size = struct.unpack_from("<4sI", body, at)
        yield name, body[at + 8 : at + 8 + size]
        at += 8 + size + size % 2


def _pixels(still: bytes) -> bytes:
    """The compressed pixels of a WebP that does not move."""
    return b"".join(_chunk(n, b) for n, b in chunks(still) if n in (b"VP8L", b"VP8 ", b"ALPH"))


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _three(number: int) -> bytes:
    return number.to_bytes(3, "little")
