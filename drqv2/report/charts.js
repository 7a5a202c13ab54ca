// Draws each .chart from its JSON (drqv2/report/charts.py) with plotly. Buttons choose the view, the legend's entries
// show and hide their curves. The legend is HTML below the plot, so that it never covers it. A .panel shows the chart of
// a task in small, as it is at first.
(() => {
  const faint = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const pressed = (button, on) => button.setAttribute("aria-pressed", on);
  const HOVERS = matchMedia("(hover: hover)").matches; // without, as on a phone, plotly would always show its tools
  const HOVER = {linear: "<br>%{x:,.6~g}, %{y:,.5~g}<extra></extra>", category: "<br>%{x}, %{y:,.5~g}<extra></extra>"};
  const X_TYPE = x => typeof x[0] === "string" ? "category" : "linear"; // dates, or numbers

  function drawn(trace, entry, on) { // the traces of plotly that a curve consists of
    const {x, y, low, high, name, kind} = trace, visible = on ? true : "legendonly";
    const common = {x, visible, showlegend: false, mode: "lines", name: entry.name};
    const band = {...common, line: {width: 0}, hoverinfo: "skip"};
    const thin = ["seed", "beyond"].includes(kind);
    const line = {color: faint(entry.colour, kind === "seed" ? 0.35 : 1), width: thin ? 1.1 : 2.5};
    line.dash = {seed: "solid", beyond: "dot"}[kind] ?? entry.dash;
    if (kind === "steps") line.shape = band.line.shape = "hv"; // a value holds until the next
    const mode = kind === "points" ? "lines+markers" : "lines";
    const curve = {...common, y, line, mode, hovertemplate: name + HOVER[X_TYPE(x)]};
    if (!low.length) return [curve];
    const fill = {fill: "tonexty", fillcolor: faint(entry.colour, 0.16)};
    return [{...band, y: high}, {...band, y: low, ...fill}, curve];
  }

  function plotted(plot, chart, chosen, on, small) { // returns the traces that are drawn
    const fits = trace => Object.entries(trace.view).every(([key, name]) => !(key in chosen) || chosen[key] === name);
    const order = {seed: 0, beyond: 1, curve: 2, points: 2, steps: 2};
    const shown = chart.traces.filter(fits).sort((a, b) => order[a.kind] - order[b.kind]);
    const axis = title => ({
      title: {text: small ? "" : title}, gridcolor: "#e6e9ed", zerolinecolor: "#c9d0d8", rangemode: "tozero",
      nticks: small ? 4 : 0, automargin: small,
    });
    const layout = {
      height: small ? 150 : chart.height, showlegend: false, hovermode: "closest", paper_bgcolor: "rgba(0,0,0,0)",
      margin: small ? {l: 20, r: 8, t: 8, b: 20} : {l: plot.clientWidth < 500 ? 58 : 65, r: 20, t: 12, b: 48},
      plot_bgcolor: "rgba(0,0,0,0)", font: {family: "system-ui, sans-serif", color: "#1c2430", size: small ? 10 : 12},
      hoverlabel: {align: "left"}, uirevision: Object.values(chosen).join(),
      xaxis: {...axis(chart.x_titles[chosen.x] ?? chart.x_titles[""]), type: X_TYPE(shown[0]?.x ?? [])},
      yaxis: axis(chart.y_titles[chosen.metric] ?? chart.y_titles[""]),
    };
    const traces = shown.flatMap(trace => drawn(trace, chart.entries[trace.entry], on[trace.entry]));
    const tools = {displaylogo: false, displayModeBar: HOVERS ? "hover" : false};
    Plotly.react(plot, traces, layout, {responsive: true, ...(small ? {staticPlot: true} : tools)});
    return shown;
  }

  const firstChoices = chart => Object.fromEntries(Object.entries(chart.choices).map(([key, names]) => [key, names[0]]));

  function startPanel(panel) {
    const section = document.getElementById(panel.dataset.panel);
    const chart = JSON.parse(section.querySelector(".chart script").textContent);
    const chosen = {...firstChoices(chart), seeds: "no seeds"};
    plotted(panel.querySelector(".plot"), chart, chosen, chart.entries.map(entry => entry.on), true);
  }

  function start(element) {
    const chart = JSON.parse(element.querySelector("script").textContent);
    const chosen = firstChoices(chart);
    const on = chart.entries.map(entry => entry.on);
    const plot = element.querySelector(".plot");
    const entries = [...element.querySelectorAll(".legend [data-entry]")];

    function draw() {
      const shown = plotted(plot, chart, chosen, on, false);
      entries.forEach((button, i) => {
        pressed(button, on[i]);
        button.disabled = !shown.some(trace => trace.entry === i);
      });
    }

    for (const button of element.querySelectorAll("[data-choice]")) {
      button.addEventListener("click", () => {
        chosen[button.dataset.choice] = button.value;
        for (const other of element.querySelectorAll(`[data-choice="${button.dataset.choice}"]`)) {
          pressed(other, other === button);
        }
        draw();
      });
    }
    entries.forEach((button, i) => button.addEventListener("click", event => {
      if (event.shiftKey) on.forEach((_, j) => { on[j] = j === i; }); // only this one
      else on[i] = !on[i];
      draw();
    }));
    for (const button of element.querySelectorAll("[data-all]")) {
      button.addEventListener("click", () => { on.fill(button.dataset.all === "true"); draw(); });
    }
    draw();
  }

  function startVisible() { // a chart in a closed section has no width; it waits until the section is opened
    for (const element of document.querySelectorAll(".chart:not([data-drawn])")) {
      if (element.closest("details:not([open])")) continue;
      element.dataset.drawn = "";
      start(element);
    }
  }

  function openTarget() { // a link to a task opens its section
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const section = target && target.querySelector("details.task");
    if (section) section.open = true;
  }

  document.addEventListener("toggle", startVisible, true);
  window.addEventListener("hashchange", openTarget);
  document.querySelectorAll(".panel").forEach(startPanel);
  startVisible();
  openTarget();
})();
