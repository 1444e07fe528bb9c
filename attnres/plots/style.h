// The report's style sheet: light and dark by the reader's setting, from a phone's width on, and a
// printed page without its decoration. Plots are drawn once, for light pages: on dark ones their
// lightness is turned round, white to the cards' colour, and their hues are kept.
#pragma once

namespace attnres {

inline constexpr const char* kStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #fafaf8; --card: #fff; --ink: #1c1c1a; --soft: #63635e; --line: #e0e0da; --mark: #fff6dc;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16171a; --card: #1f2125; --ink: #e9e9e6; --soft: #a3a39c; --line: #36383d;
    --mark: #3a3320;
  }
  .plot svg, .swatch, .scale svg, .outlined { filter: invert(.88) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 3rem 1.5rem 5rem; max-width: 66rem;
  background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
        sans-serif;
}
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 .8rem; font-size: 1.25rem; }
h3 { margin: 1.6rem 0 .6rem; font-size: 1rem; overflow-wrap: anywhere; }
h3 small { margin-left: .4em; color: var(--soft); font-size: .85em; font-weight: 400; }
.verdict { max-width: 50rem; margin: .8rem 0 0; font-size: 1.2rem; overflow-wrap: anywhere; }
section { margin-top: 3rem; padding-top: 1.4rem; border-top: 1px solid var(--line); }
aside {
  margin-top: 1.4rem; padding: .7rem 1.1rem; border-left: 3px solid var(--soft);
  background: var(--card); font-size: .9rem; overflow-wrap: anywhere;
}
aside h2 { margin: 0; font-size: .95rem; }
aside p { margin: .2rem 0 0; }
aside.banner { border: 2px solid #d55e00; font-size: 1rem; }
aside dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: .4rem 0 0; }
aside dt { color: var(--soft); }
aside dd { margin: 0; }
aside ul { margin: .2rem 0 0; padding-left: 1.1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .8rem; border-bottom: 1px solid var(--line); vertical-align: baseline; }
th { text-align: left; font-weight: 500; }
thead th { color: var(--soft); line-height: 1.25; vertical-align: bottom; }
.numbers { width: 100%; }
.numbers td, .numbers thead th { text-align: right; }
.numbers th, .numbers td { padding: .45rem .55rem; }
.numbers td { white-space: nowrap; }
.numbers .words, .numbers thead th:first-child { text-align: left; }
.numbers tbody th { min-width: 8.5rem; overflow-wrap: anywhere; }
.run { display: flex; align-items: baseline; }
.best { background: var(--mark); }
.best th, .best td { font-weight: 650; }
.settings td, .settings thead th { min-width: 8.5rem; max-width: 24rem; overflow-wrap: anywhere; }
.swatch { margin-right: .55em; flex: none; position: relative; top: .1em; }
.legend {
  display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; margin: .8rem 0; padding: 0;
  list-style: none; font-size: .9rem;
}
.legend li { display: flex; align-items: center; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
.pair + .wide, .wide + .pair, .key + .wide, .key + .pair { margin-top: 1rem; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; }
.progress { margin: .5rem 0 0; color: var(--soft); }
.seen li, .notes li { margin-bottom: .35rem; max-width: 52rem; overflow-wrap: anywhere; }
.plot {
  margin: 0; padding: .9rem 1rem .5rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); break-inside: avoid; max-width: 32.5rem;
}
.plot figcaption { margin-bottom: .4rem; font-size: .9rem; font-weight: 600; }
.plot svg { display: block; width: 100%; height: auto; }
.plot svg g { font-family: inherit; }
.schedule { display: block; width: 100%; min-width: 46rem; height: auto; margin-top: .6rem; }
.schedule g { font-family: inherit; }
.key, .missing { margin: .8rem 0 0; color: var(--soft); font-size: .85rem; max-width: 52rem; }
.missing { font-style: italic; }
.scale { display: inline-flex; align-items: center; gap: .45em; margin: 0 1.2em 0 .3em; }
.outlined {
  display: inline-block; width: 1.1em; height: .85em; border: 2px solid #d55e00;
  vertical-align: -.06em;
}
pre {
  margin: 0 0 .8rem; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); font: .82rem/1.5 ui-monospace, "SFMono-Regular", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere;
}
code { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace;
       font-size: .92em; }
details { margin-top: .7rem; }
summary { cursor: pointer; }
details pre { margin-top: .6rem; }
article { min-width: 0; }
article h3 { margin-top: 0; }
@media screen and (max-width: 62rem) {
  .numbers, .numbers tr, .numbers tbody th { display: block; }
  .numbers thead { display: none; }
  .numbers tbody {
    display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: .8rem;
  }
  .numbers tr { border: 1px solid var(--line); border-radius: 6px; }
  .numbers tr:not(.best) { background: var(--card); }
  .numbers tbody th { font-weight: 650; }
  .numbers td { display: flex; justify-content: space-between; gap: 1rem; padding: .3rem .8rem; }
  .numbers td.none { display: none; }
  .numbers td:last-child { border-bottom: 0; }
  .numbers td::before { content: attr(data-name); color: var(--soft); font-weight: 400; }
}
@media screen and (max-width: 40rem) {
  body { padding: 1.4rem .8rem 3rem; }
  h1 { font-size: 1.5rem; }
  .verdict { font-size: 1.05rem; }
  section { margin-top: 2rem; padding-top: 1rem; }
  .plot { padding: .6rem .5rem .3rem; }
  aside dl { grid-template-columns: 1fr; }
  aside dd { margin-bottom: .3rem; }
  .settings th, .settings td { padding: .4rem .5rem; }
  .settings td, .settings thead th { min-width: 6rem; }
}
@media print {
  @page { margin: 15mm; }
  :root { --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc; --mark: #f3f3f0; }
  html { font-size: 8.5pt; }
  body { padding: 0; max-width: none; }
  .wide { overflow: visible; }
  .numbers tbody th { min-width: 7.5rem; }
  .settings td, .settings thead th { min-width: 0; }
  section { margin-top: 1.4rem; padding-top: 1rem; }
  h2, h3, .legend { break-after: avoid; }
  .pair { grid-template-columns: 1fr 1fr; gap: .6rem; }
  th, td, .numbers th, .numbers td { padding: .3rem .4rem; }
  tr, aside { break-inside: avoid; }
  .plot svg, .swatch, .scale svg, .outlined { filter: none; }
  svg, .best, .outlined { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

}  // namespace attnres
