"""The style sheet: paper and ink, two accents for simulation and twin, the system's own type."""

from __future__ import annotations

LIGHT = {
    "paper": "#fcfbf9", "raised": "#f4f2ee", "ink": "#1d1c1a", "soft": "#625e57", "rule": "#dfdbd3",
    "sim": "#1f5aa8", "twin": "#b0480f", "other": "#5d6b2e",
    "c1": "#1f5aa8", "c2": "#b0480f", "c3": "#2c7a57", "c4": "#8a3d8f", "c5": "#8a6a00", "c6": "#5b5f66",
}  # fmt: skip
"""Colours by day; every one that carries text has a contrast of at least 4.5 on paper and raised."""

DARK = {
    "paper": "#14161a", "raised": "#1d2026", "ink": "#e9e7e2", "soft": "#a6a39c", "rule": "#333840",
    "sim": "#82b4f5", "twin": "#f2a36b", "other": "#b5c77a",
    "c1": "#82b4f5", "c2": "#f2a36b", "c3": "#7fcfa5", "c4": "#d79be0", "c5": "#e2c35a", "c6": "#b3b7bf",
}  # fmt: skip
"""Colours by night."""


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_LOOKS = "".join(
    f".{name}{{--tone:var(--{name})}}" for name in ("sim", "twin", "other", "c1", "c2", "c3", "c4", "c5", "c6")
)

STYLE = (
    f"""
:root{{{_variables(LIGHT)}color-scheme:light dark}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
{_LOOKS}"""
    + """
*{box-sizing:border-box}
html{font:17px/1.55 Inter,ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;
 -webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--ink);font-feature-settings:"kern","liga"}
header,main,footer{max-width:66rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:4rem}
h1,h2,h3{line-height:1.2;letter-spacing:-.015em;text-wrap:balance;overflow-wrap:anywhere}
h1{font-size:clamp(2.1rem,6vw,3.2rem);font-weight:680;margin:.2rem 0 .8rem;letter-spacing:-.03em}
h2{font-size:1.5rem;font-weight:640;margin:0 0 1.4rem}
h3{font-size:1.02rem;font-weight:640;margin:2.2rem 0 .8rem}
section{margin:0;padding:3rem 0;border-top:1px solid var(--rule);scroll-margin-top:1rem}
p{margin:.6rem 0;max-width:44rem;overflow-wrap:anywhere}
a{color:inherit;text-decoration-color:var(--soft);text-underline-offset:.2em}
a:hover{text-decoration-color:currentColor}
:focus-visible{outline:2px solid var(--sim);outline-offset:3px;border-radius:3px}
code,pre{font:.86em/1.5 ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,monospace}
.kicker{font-size:.86rem;font-weight:600;color:var(--soft);margin:0}
.lead{font-size:1.22rem;line-height:1.45;max-width:46rem;text-wrap:pretty}
.small,.note{color:var(--soft);font-size:.82rem}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.3rem;list-style:none;padding:0;margin:1.6rem 0 2.4rem;font-size:.9rem}
.journey{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.6rem,1fr));gap:1.8rem 1.2rem;list-style:none;
 padding:0;margin:0 0 2.6rem}
.journey li{display:flex;flex-direction:column;min-width:0;overflow-wrap:anywhere}
.journey .where{display:flex;align-items:center;gap:.5rem;font-size:.82rem;color:var(--soft)}
.journey .big{font-size:2.5rem;font-weight:640;letter-spacing:-.045em;line-height:1.15}
.journey .interval{font-size:.86rem;font-variant-numeric:tabular-nums;color:var(--soft)}
.journey .label{font-weight:600;margin-top:.35rem;line-height:1.3}
svg{overflow:visible;display:block}
svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.key{display:inline-block;width:18px;height:12px;flex:none;vertical-align:middle}
.where .key{width:12px}
.sign{fill:var(--tone);stroke:none}
.sign.open{fill:var(--paper);stroke:var(--tone);stroke-width:1.5}
.sign.faint{opacity:.45}
.sign.cross{fill:none;stroke:var(--soft);stroke-width:1.6}
.grid{stroke:var(--rule);stroke-width:1}
.tick{stroke:var(--soft)}
.curve{fill:none;stroke:var(--tone);stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.bar{fill:var(--tone);fill:color-mix(in srgb,var(--tone) 72%,var(--paper))}
.whisker{stroke:var(--tone);stroke-width:2.5;stroke-linecap:round}
.plot{padding:8px 20px 44px 56px}
.plot>svg{width:100%;height:210px}
.forest{padding:0 24px 30px 15rem;box-sizing:content-box}
.forest>svg{height:100%}
.forest .row{text-anchor:end;paint-order:stroke;stroke:var(--paper);stroke-width:4px;
 transform:translate(-28px,-2px);font-size:14px;fill:var(--ink)}
.forest .row .axis{font-size:12px;fill:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.6rem 2rem}
.chart{margin:0;min-width:0}
.chart figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:.1rem 1rem;font-size:.88rem;
 margin-bottom:.5rem;overflow-wrap:anywhere}
.chart figcaption strong{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:0 1rem;color:var(--soft);font-size:.8rem}
.chart .note{margin-top:.2rem}
.scroll{overflow-x:auto;margin:1.4rem 0;scrollbar-width:thin}
table{border-collapse:collapse;min-width:100%;font-size:.84rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding-bottom:.5rem;caption-side:top}
th,td{text-align:left;padding:.5rem 1.2rem .5rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
th:last-child,td:last-child{padding-right:0}
thead th{font-weight:500;color:var(--soft);vertical-align:bottom;line-height:1.3}
tbody th{font-weight:600;min-width:8rem}
.number{text-align:right;white-space:nowrap}
thead .number{white-space:normal}
.command{overflow-wrap:anywhere}
.facts{display:grid;gap:1rem 1.4rem;margin:0 0 1.6rem;
 grid-template-columns:repeat(auto-fill,minmax(min(100%,8.2rem),1fr))}
.facts div{min-width:0}
.facts dt{color:var(--soft);font-size:.8rem}
.facts dd{margin:0;font-size:.95rem;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.videos{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,15rem),1fr));gap:1.6rem 1.4rem}
.videos figure{margin:0;max-width:30rem}
.videos video,.videos img{width:100%;height:auto;display:block;background:var(--raised);border-radius:6px}
.videos figcaption{font-size:.88rem;line-height:1.4;margin-top:.6rem;overflow-wrap:anywhere}
.videos .small{display:block}
.still{display:none!important}
#settings details{border-bottom:1px solid var(--rule)}
details .charts{padding:1rem 0}
summary{cursor:pointer;padding:.7rem 0;font-size:.92rem}
pre{background:var(--raised);border-radius:6px;padding:1rem 1.2rem;overflow-x:auto;margin:0 0 1.2rem}
footer{border-top:1px solid var(--rule);padding-top:1.6rem;padding-bottom:4rem;color:var(--soft);font-size:.86rem}
footer ul{padding-left:1.2rem;overflow-wrap:anywhere}
@media (max-width:40rem){
 html{font-size:16px}
 header,main,footer{padding-left:1.1rem;padding-right:1.1rem}
 header{padding-top:2.2rem}
 section{padding:2.2rem 0}
 .journey{grid-template-columns:1fr 1fr}
 .journey .big{font-size:2.1rem}
 .plot{padding-left:52px;padding-right:14px}
 .plot>svg{height:180px}
 .forest{padding:0 20px 30px 8px}
 .forest>svg{height:100%}
 .forest .row{text-anchor:start;transform:translate(0,-12px);font-size:13px}
 .forest .row .axis{display:none}
}
@media print{
 :root{"""
    + _variables(LIGHT)
    + """}
 html{font-size:10pt}
 header{padding-top:0}
 nav,.videos video{display:none}
 .still{display:block!important}
 section{padding:1.4rem 0}
 figure,tr,.journey,.forest{break-inside:avoid}
 h2,h3{break-after:avoid}
 .scroll{overflow:visible}
}
"""
)  # noqa: E501
