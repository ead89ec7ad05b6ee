"use strict";
(async () => {
  // plotly.js travels compressed: a third of its size
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);

  const palettes = JSON.parse(document.getElementById("palettes").textContent);
  const night = matchMedia("(prefers-color-scheme: dark)");
  let clock = "steps";

  function draw(plot, palette, width) {
    const named = (key, value) => (/color$/.test(key) && value in palette ? palette[value] : value);
    const { data, layout } = JSON.parse(plot.nextElementSibling.textContent, named);
    let label = "";
    for (const trace of data.filter((trace) => trace.clocks)) {
      label = trace.clocks[clock] ? clock : "steps";
      trace.x = trace.clocks[label];
      delete trace.clocks;
    }
    const axis = { gridcolor: palette.rule, zeroline: false, linecolor: palette.rule, automargin: true,
      hoverformat: ".4~g", exponentformat: "power", title: { text: label } };
    const y = { ...axis, title: { text: "" }, ...layout.yaxis };
    const x = { ...axis, hoverformat: ",.4~g", exponentformat: "SI", showgrid: false, ticks: "outside", tickcolor: palette.rule, ...layout.xaxis };
    Plotly.react(plot, data, {
      hovermode: "x unified", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", height: 260,
      margin: { l: 8, r: 16, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: palette.soft },
      hoverlabel: { bgcolor: palette.raised, bordercolor: palette.rule, font: { color: palette.ink }, namelength: -1 },
      legend: { orientation: "h", x: 0, y: 1.05, yanchor: "bottom" }, showlegend: data.length > 1, width,
      ...layout, xaxis: x, yaxis: y,
    }, { responsive: true, displayModeBar: false });
  }

  function drawAll(palette, width) {
    for (const plot of document.querySelectorAll(".plot"))
      if (!plot.closest("details:not([open])")) draw(plot, palette, width);
  }
  const redraw = () => drawAll(night.matches ? palettes.dark : palettes.light);
  redraw();
  night.addEventListener("change", redraw);
  addEventListener("beforeprint", () => drawAll(palettes.light, 640));
  addEventListener("afterprint", redraw);
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", redraw);
  for (const input of document.querySelectorAll("input[name=clock]"))
    input.addEventListener("change", () => { clock = input.value; redraw(); });
})();
