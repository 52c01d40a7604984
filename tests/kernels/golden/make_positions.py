#!/usr/bin/env python3
"""usage: make_positions.py > positions.txt     the golden numbers of positions_golden_test.cpp

Position encodings to 50 digits with mpmath (pip install mpmath), from the formulas of the papers. Lines:
    encoding NAME ROTARY_DIM THETA FACTOR ORIGINAL EXTRA   EXTRA: hope's period multiplier, hope-partial's kept ratio
    w PAIR VALUE                         radians a position
    angle POSITION PAIR COS SIN          of the encoding above
    gain VALUE                           of the score, for yarn
    zeta ROTARY_DIM PAIR DISTANCE VALUE  xPos's relative factor
    slope HEADS HEAD VALUE               ALiBi
"""
from mpmath import ceil, cos, exp, floor, fmod, log, mp, mpf, nint, pi, sin

mp.dps = 50
POSITIONS = [1, 255, 256, 257, 258, 131071, 131072, 1000003, 4194303, 16777216, 16777217, 2**28 - 1, 2**28, -1000003]


def rope(theta, d):
    return [mpf(theta) ** (-mpf(2 * j) / d) for j in range(d // 2)]


def yarn(theta, d, s, length):
    def pair(turns):
        return d * log(mpf(length) / (2 * pi * turns)) / (2 * log(mpf(theta)))

    low, high = max(floor(pair(32)), 0), min(ceil(pair(1)), d - 1)
    ramps = [min(max((j - low) / (high - low), 0), 1) for j in range(d // 2)]
    return [w / s * ramp + w * (1 - ramp) for w, ramp in zip(rope(theta, d), ramps)]


def hope(theta, d, length, m):
    return [w if j == 0 or w >= 2 * pi * m / length else mpf(0) for j, w in enumerate(rope(theta, d))]


def partial_hope(d, length, ratio):
    n = int(nint(mpf(ratio) * d / 2))
    theta = (length / (2 * pi)) ** (mpf(n) / (n - 1))
    return [theta ** (-mpf(j) / n) for j in range(n)] + [mpf(0)] * (d // 2 - n)


def text(x):
    return mp.nstr(x, 20)


def show(name, d, theta, factor, length, extra, frequencies):
    print("encoding", name, d, theta, factor, length, extra)
    kept = sum(w > 0 for w in frequencies)
    pairs = sorted({0, 1, 2, d // 8, kept // 2, kept - 1, kept, d // 2 - 1} & set(range(d // 2)))
    for j in pairs:
        print("w", j, text(frequencies[j]))
    for n in POSITIONS:
        for j in pairs:
            angle = fmod(n * frequencies[j], 2 * pi)
            print("angle", n, j, text(cos(angle)), text(sin(angle)))


show("rope", 128, 10000, 1, 0, 0, rope(10000, 128))
show("rope", 256, 10000000, 1, 0, 0, rope(10000000, 256))
show("rope", 2, 10000, 1, 0, 0, rope(10000, 2))
show("pi", 80, 10000, 8, 0, 0, [w / 8 for w in rope(10000, 80)])
show("ntk", 128, 10000, 4, 0, 0, rope(10000 * mpf(4) ** (mpf(128) / 126), 128))
show("yarn", 128, 10000, 32, 4096, 0, yarn(10000, 128, 32, 4096))  # Llama-2
print("gain", text((log(mpf(32)) / 10 + 1) ** 2))
show("hope", 128, 500000, 1, 8192, 2, hope(500000, 128, 8192, 2))
show("hope-partial", 64, 10000, 1, 8192, 0.5, partial_hope(64, 8192, 0.5))
for d, j, distance in [(64, 0, 1), (64, 0, 512), (64, 31, 100000), (128, 40, 1000003), (128, 63, 16777217)]:
    print("zeta", d, j, distance, text(exp(distance * log((2 * j + mpf("0.4") * d) / (mpf("1.4") * d)) / 512)))
for heads in [1, 8, 12, 32]:
    power = 2 ** (heads.bit_length() - 1)
    slopes = [mpf(2) ** (mpf(-8 * h) / power) for h in range(1, power + 1)]
    slopes += [mpf(2) ** (mpf(-8 * h) / (2 * power)) for h in range(1, 2 * power, 2)]
    for h in range(heads):
        print("slope", heads, h, text(slopes[h]))
