"""How many steps a stretch has, where a plain script looks at the clock only after several."""

STRETCH = 25
