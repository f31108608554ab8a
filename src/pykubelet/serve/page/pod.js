// One pod: its row in the table, and what is below the row when it is opened.
import { amount, element, fill, moment, spoken, usageCharts, write } from "./charts.js";

const BAD = /Err|BackOff|Fail|OOM|Evicted|Invalid|Unknown|Unexpected|NotRunning/;
const LINES_SHOWN = 25;
const GOOD = new Set(["Running", "Completed", "Succeeded"]);

function isReady(pod) {
  const [ready, all] = pod.ready.split("/");
  return ready === all || pod.status !== "Running";
}

export function health(pod) {
  if (BAD.test(pod.status)) return "bad";
  return GOOD.has(pod.status) && isReady(pod) && !pod.waits.length ? "good" : "wait";
}

function table(title, head, rows) {
  const titles = element("tr", {}, ...head.map(([words, kind]) => element("th", { scope: "col", class: kind || "" }, words)));
  return element("div", {}, element("h3", {}, title),
    element("table", { class: title.toLowerCase() }, element("thead", {}, titles), element("tbody", {}, ...rows)));
}

const numbers = (...words) => words.map((word) => element("td", { class: "number" }, word));
const rate = (value) => (value === 0 ? "0" : amount(value, "rate"));
const below = (words) => element("div", { class: "soft below" }, words);

function words(wait) {
  return [[wait.what, wait.subject && ` ${wait.subject}`].join(""), wait.reason, wait.detail].filter(Boolean).join(": ");
}

function next(wait) {
  if (!wait.next_step) return [];
  return wait.next_at ? ["; next: ", wait.next_step, " ", moment(wait.next_at)] : ["; next: ", wait.next_step];
}

const waits = (pod) => [element("h3", {}, "Waits for"), element("ul", { class: "waits" }, ...pod.waits.map((wait) =>
  element("li", {}, words(wait), element("span", { class: "soft" }, " – for ", moment(wait.since), `, by ${wait.owner}`, ...next(wait)))))];

function state(container) {
  const texts = [container.state === "waiting" && container.reason ? "" : container.state, container.reason,
    container.exit_code ? `exit code ${container.exit_code}` : ""];
  const cell = element("td", {}, texts.filter(Boolean).join(", "), ...(container.since ? [" ", moment(container.since)] : []));
  const { last } = container;
  if (last && last.state === "terminated") {
    const ended = [last.reason, `exit code ${last.exit_code}`].filter(Boolean).join(", ");
    cell.append(element("div", { class: "soft below" }, `before: ${ended}`, ...(last.since ? [", ", moment(last.since), " ago"] : [])));
  }
  return cell;
}

function containerRows(container) {
  const kind = container.kind === "regular" ? null : element("span", { class: "soft" }, ` ${container.kind}`);
  const name = element("th", { scope: "row" }, container.name, kind, below(container.image));
  const restarts = element("td", { class: "number w2" }, String(container.restarts));
  const row = element("tr", {}, name, state(container), restarts, ...numbers(amount(container.cpu, "cores"), amount(container.memory)));
  const notes = [container.message, container.last && container.last.message && `before: ${container.last.message.trim()}`].filter(Boolean);
  return notes.length ? [row, element("tr", { class: "note" }, element("td", { colspan: 4 }, notes.join("\n")))] : [row];
}

const containers = (pod) => [table("Containers", [["Container"], ["State"], ["Restarts", "number w2"], ["CPU", "number"], ["Memory", "number"]],
  pod.containers.flatMap(containerRows))];

const volumes = (pod) => (pod.volumes.length ? [table("Volumes", [["Volume"], ["Kind"], ["Used", "number"]], pod.volumes.map((volume) =>
  element("tr", {}, element("th", { scope: "row" }, volume.name, below(volume.path)), element("td", {}, volume.kind), ...numbers(amount(volume.used)))))] : []);

const conditions = (pod) => [table("Conditions", [["Condition"], ["Status"], ["Why"]], pod.conditions.map((condition) =>
  element("tr", {}, element("th", { scope: "row" }, condition.type), element("td", {}, condition.status),
    element("td", {}, [condition.reason, condition.message].filter(Boolean).join(": ")))))];

export function reason(line) {
  return line.type === "Warning" ? [element("strong", { class: "bad" }, element("span", { "aria-hidden": "true" }, "▲\u00a0"), spoken("Warning: "), line.event)]
    : [element("strong", {}, line.event)];
}

// The container in a field path such as `spec.containers{main}`.
export function part(path) {
  const found = /\{(.+)\}/.exec(path);
  return found ? element("span", { class: "soft" }, `${found[1]}: `) : "";
}

function happened(line) {
  const event = line.event ? [...reason(line), " ", part(line.object || "")] : [];
  const cause = line.cause ? element("span", { class: "soft" }, ` – ${line.cause}`) : null;
  return element("li", {}, moment(line.at), element("span", {}, ...event, line.what, line.count > 1 ? ` (${line.count} times)` : "", cause));
}

// What is odd about a file that is used nevertheless.
export const placed = (item) => [item.document ? `${item.origin} (${item.document})` : item.origin, item.field_path, item.reason].filter(Boolean).join(": ");
export const remarkItem = (remark) => element("li", {}, "Remark: ", placed(remark));

const remarks = (pod) => (pod.remarks.length ? [element("ul", {}, ...pod.remarks.map(remarkItem))] : []);

const timeline = (pod) => [element("h3", {}, "Timeline, newest first"),
  element("ol", { class: "lines" }, ...pod.timeline.slice(-LINES_SHOWN).reverse().map(happened))];

const facts = (pod) => [
  ["Phase", pod.phase], ["Reason", [pod.reason, pod.message].filter(Boolean).join(": ")], ["Ends because", pod.kill_reason],
  ["IP", pod.ip], ["QoS", pod.qos], ["Ready", pod.ready], ["Restarts", pod.restarts], ["From", pod.source], ["UID", pod.uid],
].filter(([, value]) => value).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));

// What is shown of an opened pod, in order: its class, what it is made from, and who makes it.
const PARTS = [
  ["facts", (pod) => [pod.phase, pod.reason, pod.message, pod.kill_reason, pod.ip, pod.qos, pod.ready, pod.restarts], facts],
  ["waits", (pod) => pod.waits, (pod) => (pod.waits.length ? waits(pod) : [])],
  ["remarks", (pod) => pod.remarks, remarks],
  ["charts", (pod) => pod.usage, (pod) => usageCharts(pod.usage, {}, "Disk")],
  ["containers", (pod) => pod.containers, containers],
  ["volumes", (pod) => pod.volumes, volumes],
  ["timeline", (pod) => pod.timeline, timeline],
  ["conditions", (pod) => pod.conditions, conditions],
];

// A pod's two table rows. `opened` is called when the user opens it.
export class PodRow {
  constructor(pod, opened) {
    this.uid = pod.uid;
    const inside = `pod-${pod.uid}`;
    this.cell = element("td", {});
    this.button = element("button", { type: "button", "aria-expanded": "false", "aria-controls": inside },
      element("span", { class: "soft" }, `${pod.namespace}/`), pod.name);
    this.status = element("span", {});
    this.cells = ["w1", "w2", "w1", "w1", "w2", "w3", "w3", "w2"].map((kind) => element("td", { class: `number ${kind}` }));
    const name = element("th", { scope: "row" }, this.button);
    const row = element("tr", { class: "head" }, name, element("td", {}, this.status), ...this.cells);
    this.why = element("div", { class: "why" });
    this.parts = PARTS.map(([kind]) => element(kind === "facts" ? "dl" : "div", { class: kind }));
    this.gone = element("p", { class: "soft" }, "Asking the agent …");
    const named = { id: inside, class: "inside", role: "group", "aria-label": `${pod.namespace}/${pod.name}`, hidden: "" };
    this.inside = element("div", named, this.gone, ...this.parts);
    this.below = element("tr", { class: "more", hidden: "" }, this.cell);
    this.cell.append(this.why, this.inside);
    this.body = element("tbody", { "data-uid": pod.uid }, row, this.below);
    row.addEventListener("click", (event) => {
      const selects = !this.button.contains(event.target) && String(getSelection());
      if (!selects && this.setOpen(this.inside.hidden)) opened(this);
    });
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isOpen) { this.setOpen(false); this.button.focus(); }
    });
  }

  get isOpen() { return !this.inside.hidden; }

  setOpen(open) {
    this.inside.hidden = !open;
    this.why.hidden = open;
    this.button.setAttribute("aria-expanded", String(open));
    this.body.classList.toggle("open", open);
    this.below.hidden = !open && !this.why.childNodes.length;
    return open;
  }

  show(pod) {
    this.status.className = `status ${health(pod)}`;
    write(this.status, pod.status);
    const use = pod.use || {};
    const texts = [pod.ready, String(pod.restarts), amount(use.cpu, "cores"), amount(use.memory), amount(use.disk),
      rate(use.received), rate(use.sent)];
    texts.forEach((value, place) => write(this.cells[place], value));
    fill(this.cells[7], pod.created, (at) => (at ? [moment(at)] : []));
    const [first] = pod.waits;
    fill(this.why, [pod.message, first], () => (first
      ? [`waits for ${words(first)}`, element("span", { class: "soft" }, " – ", moment(first.since))] : [pod.message].filter(Boolean)));
    this.below.hidden = !this.isOpen && !this.why.childNodes.length;
  }

  // `pod`: the agent's full answer; null: there is no such pod any more.
  showInside(pod) {
    this.gone.hidden = pod !== null;
    if (pod === null) { write(this.gone, "This pod is gone."); return; }
    PARTS.forEach(([, data, make], place) => fill(this.parts[place], data(pod), () => make(pod)));
  }
}
