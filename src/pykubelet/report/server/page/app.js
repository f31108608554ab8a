"use strict";
// Everything shown comes as text into text nodes: names and messages of pods are foreign words.
const PERIOD_MS = 2000;
const opened = new Set();
let newest = null;

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  for (const child of children) made.append(child);
  return made;
}

function ago(at) {
  const seconds = Math.max(0, Math.round(newest.now - at));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

function amount(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "cores") return `${(value / 1e9).toFixed(2)} cores`;
  let size = value;
  for (const name of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return `${size.toFixed(size < 10 && name !== "B" ? 1 : 0)} ${name}${unit === "rate" ? "/s" : ""}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB${unit === "rate" ? "/s" : ""}`;
}

function chart(title, values, unit, most) {
  while (values.length && values[0] === null) values = values.slice(1);
  const known = values.filter((value) => value !== null);
  const last = known.length ? known[known.length - 1] : null;
  const top = Math.max(most || 0, ...known, 1);
  const namespace = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(namespace, "svg");
  picture.setAttribute("viewBox", "0 0 100 40");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `${title}: now ${amount(last, unit)}, at most ${amount(Math.max(0, ...known), unit)} in the last minutes`);
  const line = document.createElementNS(namespace, "polyline");
  const step = values.length > 1 ? 100 / (values.length - 1) : 100;
  line.setAttribute("points", values.map((value, place) => `${(place * step).toFixed(2)},${(39 - 38 * (value || 0) / top).toFixed(2)}`).join(" "));
  picture.append(line);
  return element("figure", {}, element("figcaption", {}, element("span", {}, title), element("strong", {}, amount(last, unit))), picture);
}

function badge(pod) {
  const kind = pod.waits.length ? "wait" : pod.status === "Running" || pod.status === "Completed" ? "good" : "bad";
  return element("span", { class: `badge ${kind}` }, pod.status);
}

function waits(pod) {
  const list = element("ul", { class: "waits", "aria-label": "What the pod waits for" });
  for (const wait of pod.waits) {
    const words = [wait.what, wait.subject, wait.reason, wait.detail].filter(Boolean).join(": ");
    list.append(element("li", {}, `${words} (for ${ago(wait.since)}, ${wait.owner})`));
  }
  return list;
}

function table(head, rows) {
  const titles = element("tr", {}, ...head.map((title) => element("th", { scope: "col" }, title)));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, String(cell))))));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, titles), body));
}

function story(lines) {
  const list = element("ol", { class: "story", "aria-label": "Story" });
  for (const line of lines.slice(-20).reverse()) {
    list.append(element("li", {}, element("span", { class: "soft" }, `${ago(line.at)} ago `), `${line.event ? line.event + ": " : ""}${line.what}`));
  }
  return list;
}

function showPod(pod) {
  const key = pod.uid;
  const open = element("details", { "data-uid": key });
  open.open = opened.has(key);
  const used = newest.pods_usage[key] || { cpu: [], memory: [] };
  const cpu = used.cpu.length ? amount(used.cpu[used.cpu.length - 1], "cores") : "–";
  const memory = used.memory.length ? amount(used.memory[used.memory.length - 1]) : "–";
  open.append(element("summary", {}, element("span", { class: "name" }, `${pod.namespace}/${pod.name}`), badge(pod),
    element("span", {}, `${pod.ready} ready`), element("span", { class: "soft" }, `${pod.restarts} restarts`),
    element("span", { class: "soft" }, cpu), element("span", { class: "soft" }, memory)));
  if (pod.waits.length) {
    const [first] = pod.waits;
    open.firstChild.append(element("span", { class: "wait why" }, `waits for: ${[first.what, first.subject, first.detail].filter(Boolean).join(", ")}`));
    open.append(waits(pod));
  }
  const inside = element("div", {});
  open.append(inside);
  open.addEventListener("toggle", () => {
    if (open.open) opened.add(key); else opened.delete(key);
    if (open.open && !inside.childNodes.length) fillPod(inside, key, used);
  });
  if (open.open) fillPod(inside, key, used);
  return open;
}

async function fillPod(inside, uid, used) {
  const answer = await fetch(`pod?uid=${encodeURIComponent(uid)}`);
  if (!answer.ok) return;
  const pod = await answer.json();
  inside.replaceChildren(
    element("div", { class: "charts" }, chart("CPU", used.cpu, "cores"), chart("Memory", used.memory)),
    table(["Container", "State", "Restarts", "Image"], pod.containers.map((one) => [one.name, one.reason || one.state, one.restarts, one.image])),
    table(["Condition", "Status", "Reason"], pod.conditions.map((one) => [one.type, one.status, [one.reason, one.message].filter(Boolean).join(": ")])),
    table(["Volume", "Kind", "Where"], (newest.volumes[uid] || []).map((one) => [one.name, one.kind, one.path])),
    story(pod.story));
}

function show() {
  const node = newest.node;
  byId("node").textContent = `Node ${node.name}`;
  document.title = `${node.name} – pykubelet`;
  byId("facts").textContent = [node.ips.join(", "), node.runtime, node.version].filter(Boolean).join(" · ");
  const unwell = newest.pods.filter((pod) => pod.waits.length).length;
  byId("state").textContent = `${newest.pods.length} pods, ${unwell} waiting for something${node.trouble ? " – " + node.trouble : ""}`;
  const usage = newest.usage;
  byId("charts").replaceChildren(
    chart("CPU", usage.cpu, "cores", node.cpu_cores * 1e9), chart("Memory", usage.memory, "", node.memory),
    chart("Received", usage.received, "rate"), chart("Sent", usage.sent, "rate"), chart("Disk used", usage.disk, "", node.disk));
  const wanted = byId("filter").value;
  const chosen = newest.pods.filter((pod) => `${pod.namespace}/${pod.name}`.includes(wanted));
  const focused = document.activeElement && document.activeElement.closest("details");
  const focus = focused ? focused.dataset.uid : null;
  byId("pods").replaceChildren(...(chosen.length ? chosen.map(showPod) : [element("p", { class: "soft" }, "No pods.")]));
  if (focus) {
    const again = byId("pods").querySelector(`details[data-uid="${CSS.escape(focus)}"] > summary`);
    if (again) again.focus();
  }
  byId("events").replaceChildren(...newest.events.map((one) => element("li", {},
    element("span", { class: "soft" }, `${ago(one.at)} ago `), element("strong", { class: one.type === "Warning" ? "bad" : "" }, one.reason),
    ` ${one.object}: ${one.message}${one.count > 1 ? ` (${one.count} times)` : ""}`)));
  byId("images").replaceChildren(...newest.images.map((one) => element("tr", {}, element("td", {}, one.name), element("td", {}, amount(one.size)))));
}

async function look() {
  try {
    const answer = await fetch("data");
    if (!answer.ok) throw new Error(answer.status === 401 ? "this link has been used up; run pykubelet page again" : `the agent answers ${answer.status}`);
    newest = await answer.json();
    show();
  } catch (error) {
    byId("state").textContent = `Cannot ask the agent: ${error.message}`;
  }
  setTimeout(look, PERIOD_MS);
}

byId("filter").addEventListener("input", () => { if (newest) show(); });
look();
