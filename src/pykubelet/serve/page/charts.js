// Amounts in words, elements, and line charts. Everything shown comes as text into text nodes: names and messages of pods
// are foreign words.
const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

// For screen readers only.
export const spoken = (words) => element("span", { class: "spoken" }, words);

// A moment in wall seconds; `writeTimes` writes how long ago it is, or how soon it comes.
export const moment = (at) => element("time", { datetime: new Date(at * 1000).toISOString(), "data-at": at });

function span(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function writeTimes(now) {
  for (const time of document.querySelectorAll("time")) {
    const distance = now - time.dataset.at;
    write(time, distance < 0 ? `in ${span(-distance)}` : span(distance));
  }
}

export function write(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

// What `make` makes of `data`, anew only when the data is another: what one reads or has selected stays.
const shown = new WeakMap();
export function fill(parent, data, make) {
  const key = JSON.stringify(data);
  if (shown.get(parent) === key) return;
  shown.set(parent, key);
  parent.replaceChildren(...make(data));
}

// `unit`: cores (value in nanocores), bytes or rate (bytes a second).
export function amount(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "cores" && value >= 1e9) return `${(value / 1e9).toFixed(value % 1e9 ? 2 : 0)} cores`;
  if (unit === "cores") return `${value > 0 && value < 1e6 ? "<1" : Math.round(value / 1e6)}m`;
  const end = unit === "rate" ? "/s" : "";
  let size = value;
  for (const name of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1000) return `${size.toFixed(size < 10 && name !== "B" ? 1 : 0)} ${name}${end}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB${end}`;
}

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The pieces between gaps, as lists of points in a box of 100 by 40.
function pieces(at, values, top) {
  const first = at[0];
  const scale = 100 / (at[at.length - 1] - first);
  const found = [[]];
  values.forEach((value, place) => {
    if (value === null) found.push([]);
    else found[found.length - 1].push(`${((at[place] - first) * scale).toFixed(1)} ${(39.5 - 38.5 * value / top).toFixed(1)}`);
  });
  return found.filter((points) => points.length > 1);
}

// `lines`: [{ name, sign, values }], one value for each of `at`; `limit`: what there is of it, the chart's upper edge.
export function chart(title, at, lines, unit, limit) {
  const past = (line) => line.values.filter((value) => value !== null);
  const last = (line) => (line.values.length ? line.values[line.values.length - 1] : null);
  const peak = Math.max(0, ...lines.flatMap(past));
  const top = limit || peak * 1.15 || 1;
  const picture = drawn("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
  for (const height of [1, 20.25, 39.5]) picture.append(drawn("path", { class: "grid", d: `M0 ${height}H100` }));
  lines.forEach((line, number) => {
    for (const points of at.length > 1 ? pieces(at, line.values, top) : []) {
      const path = `M${points.join("L")}`;
      const [begin, end] = [points[0], points[points.length - 1]].map((point) => point.split(" ")[0]);
      if (!number) picture.append(drawn("path", { class: "area", d: `${path}L${end} 40L${begin} 40Z` }));
      picture.append(drawn("path", { class: `line line${number}`, d: path }));
    }
  });
  const since = at.length > 1 ? span(at[at.length - 1] - at[0]) : "";
  const most = lines.some((line) => past(line).length) ? `peak ${amount(peak, unit)}` : "not known";
  const texts = lines.map((line) => `${line.name} ${amount(last(line), unit)}`.trim()).join(", ");
  const edge = limit ? ` of ${amount(limit, unit)}` : "";
  picture.setAttribute("aria-label", `${title}: now ${texts}${edge}, ${most}${since && ` in the last ${since}`}`);
  const values = lines.map((line, number) => element("strong", { class: `value${number}` },
    line.sign ? element("span", { "aria-hidden": "true" }, line.sign) : null, line.name ? spoken(`${line.name} `) : null,
    edge ? amount(last(line), unit).replace(" cores", "") : amount(last(line), unit)));
  return element("figure", {},
    element("figcaption", {}, element("span", {}, title), element("span", { class: "now" }, ...values, edge)),
    picture, element("p", { class: "axis", "aria-hidden": "true" }, element("span", {}, since && `${since} ago`), element("span", {}, most.replace(" cores", ""))));
}

// The four charts of the node or of a pod. `limits`: of `cpu`, `memory`, `disk`.
export function usageCharts(usage, limits, disk) {
  const single = (name) => [{ name: "", values: usage[name] }];
  const network = [{ name: "received", sign: "↓ ", values: usage.received }, { name: "sent", sign: "↑ ", values: usage.sent }];
  return [
    chart("CPU", usage.at, single("cpu"), "cores", limits.cpu), chart("Memory", usage.at, single("memory"), "bytes", limits.memory),
    chart("Network", usage.at, network, "rate"), chart(disk, usage.at, single("disk"), "bytes", limits.disk)];
}
