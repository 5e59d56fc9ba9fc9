(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  if (typeof Plotly === "undefined") {
    for (const place of document.querySelectorAll(".chart")) {
      place.style.height = "auto";
      place.textContent = "No chart: the file of the chart library is not where it was when the sweep was made. `inflight load report` on this run's directory makes a page that needs no other file.";
    }
    document.documentElement.dataset.charts = "0";
    return;
  }
  const narrow = matchMedia("(max-width: 640px)");
  // Dragging and double clicks do all that the bar of buttons would, one of which offers to send the data away.
  const config = { displayModeBar: false, responsive: true };
  // CSS pixels between the margins of A4, less a card's padding; a chart that fills a screen must share a sheet.
  const PAPER = { width: 670, height: 0.75 };

  // Colours stand in figures as names of the style sheet's variables.
  const coloured = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((part) => coloured(part, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, coloured(part, style)]));
  };

  const draw = (paper) => {
    const style = getComputedStyle(document.documentElement);
    const look = {
      paper_bgcolor: "--card",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "--ink" },
      hoverlabel: { bgcolor: "--card", bordercolor: "--line", font: { color: "--ink" } },
      margin: { l: 44, r: 12, t: 26, b: 44 },
      uirevision: "kept",
      autosize: !paper,
    };
    return Promise.all(
      figures.map((figure) => {
        const layout = coloured({ ...look, ...figure.layout, ...(narrow.matches && !paper ? figure.narrow : {}) }, style);
        if (paper) {
          layout.width = paper.width;
          layout.height *= paper.height;
        }
        document.getElementById(figure.name).style.height = `${layout.height}px`;
        return Plotly.react(figure.name, coloured(figure.data, style), layout, config);
      }),
    );
  };

  const drawn = () => draw().then(() => { document.documentElement.dataset.charts = String(figures.length); });
  drawn();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawn);
  narrow.addEventListener("change", drawn);
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    draw(PAPER);
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    drawn();
  });
})();
