"""A moving picture shows, frame by frame, what was photographed."""

import base64

from playwright.sync_api import Browser

from tests.browser.moving import Frame, chunks, moving

SIZE = {"width": 160, "height": 90}
PAGE = """<body style="margin: 0; background: #eee">
<div style="position: absolute; left: {x}px; top: 21px; width: 33px; height: 17px;
            background: linear-gradient(red, blue)"></div>{words}</body>"""
# What each frame of the file looks like, as PNG, and how long it is seen.
DECODE = """async (webp) => {
    const data = Uint8Array.from(atob(webp), c => c.charCodeAt(0));
    const decoder = new ImageDecoder({data, type: "image/webp"});
    await decoder.tracks.ready;
    const found = [];
    for (let i = 0; i < decoder.tracks.selectedTrack.frameCount; i++) {
        const {image} = await decoder.decode({frameIndex: i});
        const canvas = new OffscreenCanvas(image.displayWidth, image.displayHeight);
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
        found.push([image.duration / 1000, Array.from(data)]);
    }
    return found;
}"""
PIXELS = """async (png) => {
    const blob = await (await fetch("data:image/png;base64," + png)).blob();
    const image = await createImageBitmap(blob);
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    return Array.from(context.getImageData(0, 0, image.width, image.height).data);
}"""


def test_every_frame_is_seen_as_it_was_photographed(browser: Browser, tmp_path) -> None:
    page = browser.new_page(viewport=SIZE)
    shots = []
    for x, words in ((3, ""), (50, ""), (50, ""), (50, "slow"), (127, "")):
        page.set_content(PAGE.format(x=x, words=words))
        shots.append(page.screenshot())
    made = moving(browser, [Frame(png, 100 + i) for i, png in enumerate(shots)], colors=1000)
    (tmp_path / "page.html").write_text("<body></body>")
    page.goto((tmp_path / "page.html").as_uri())  # where browsers offer a decoder
    decoded = page.evaluate(DECODE, base64.b64encode(made).decode())
    assert [lasts for lasts, _ in decoded] == [100, 101 + 102, 103, 104]
    for (_, pixels), png in zip(decoded, [*shots[:2], *shots[3:]], strict=True):
        assert pixels == page.evaluate(PIXELS, base64.b64encode(png).decode())
    few = page.evaluate(
        DECODE, base64.b64encode(moving(browser, [Frame(shots[0], 9)], 16)).decode()
    )
    seen = few[0][1]
    assert len(set(zip(*[iter(seen)] * 4, strict=True))) == 16 and seen[:4] == [238, 238, 238, 255]
    page.close()
    # a frame has only what changed
    sizes = [len(body) for name, body in chunks(made) if name == b"ANMF"]
    assert sizes[2] < sizes[0]
