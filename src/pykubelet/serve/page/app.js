// The page: asks the agent every few seconds, and shows when there is no answer.
import { amount, element, fill, moment, writeTimes, usageCharts, write } from "./charts.js";
import { PodRow, health, part, placed, reason, remarkItem } from "./pod.js";

const PERIOD_MS = 2000;
const PATIENCE_MS = 10000;
const SHOWN_AT_FIRST = 20;
const byId = (id) => document.getElementById(id);
const rows = new Map();
const longer = new Set();
let newest = null;
let newestAt = null;
let trouble = "Asking";

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.ok) return answer.json();
  if (answer.status === 404) return null;
  if (answer.status === 401) throw new Error(location.protocol === "http:"
    ? "This session has ended. A new link from “pykubelet page”, opened in this browser, lets this page go on."
    : "The agent does not know you any more (401).");
  throw new Error(`The agent refuses to answer (${answer.status}).`);
}

// A list's first lines, and a button for the rest.
function some(parent, name, items, make, more) {
  const all = longer.has(name) || items.length <= SHOWN_AT_FIRST;
  fill(parent, [items, all], () => {
    const made = (all ? items : items.slice(0, SHOWN_AT_FIRST)).map(make);
    if (all) return made;
    const button = element("button", { type: "button", class: "rest" }, `Show ${items.length - SHOWN_AT_FIRST} more`);
    button.addEventListener("click", () => {
      longer.add(name);
      show();
      parent.children[SHOWN_AT_FIRST].setAttribute("tabindex", "-1");
      parent.children[SHOWN_AT_FIRST].focus();
    });
    return [...made, more(button)];
  });
}

// What is below a row is as wide as the columns that fit on this screen.
function spread() {
  const columns = [...document.querySelectorAll(".pods > thead th")].filter((head) => head.offsetWidth).length;
  for (const row of rows.values()) row.cell.colSpan = columns;
}

function showPods() {
  const present = new Set(newest.pods.map((pod) => pod.uid));
  for (const [uid, row] of rows) {
    if (present.has(uid) || row.isOpen) continue;
    const near = row.body.nextElementSibling || row.body.previousElementSibling;
    if (row.body.contains(document.activeElement)) (near.querySelector("button") || byId("filter")).focus();
    row.body.remove();
    rows.delete(uid);
  }
  const wanted = byId("filter").value.trim().toLowerCase();
  const isChosen = (pod) => `${pod.namespace}/${pod.name}`.toLowerCase().includes(wanted) && (!byId("waiting").checked || health(pod) !== "good");
  const none = byId("none");
  let before = none;
  let count = 0;
  for (const pod of newest.pods) {
    if (!rows.has(pod.uid)) rows.set(pod.uid, new PodRow(pod, lookInside));
    const row = rows.get(pod.uid);
    row.show(pod);
    row.body.hidden = !isChosen(pod);
    count += !row.body.hidden;
    while (before.nextElementSibling && !present.has(before.nextElementSibling.dataset.uid)) before = before.nextElementSibling;
    if (before.nextElementSibling !== row.body) before.after(row.body);
    before = row.body;
  }
  none.hidden = count > 0;
  spread();
  const unwell = newest.pods.filter((pod) => health(pod) !== "good").length;
  write(byId("pods-title"), `Pods: ${newest.pods.length}${unwell ? `, ${unwell} not well` : ""}`);
  write(byId("count"), wanted || byId("waiting").checked ? `${count} of ${newest.pods.length} shown` : "");
}

const happened = (event) => element("li", {}, moment(event.at), element("span", {}, ...reason({ ...event, event: event.reason })),
  element("span", {}, event.object), element("span", {}, part(event.part), event.message, event.count > 1 ? ` (${event.count} times)` : ""));

const imageRow = (image) => element("tr", {}, element("td", {}, image.name), element("td", { class: "number" }, amount(image.size)));

function show() {
  const node = newest.node;
  write(byId("node"), `Node ${node.name}`);
  if (document.title !== `${node.name} – pykubelet`) document.title = `${node.name} – pykubelet`;
  write(byId("facts"), [node.ips.join(", "), node.runtime, node.version].filter(Boolean).join(" · "));
  fill(byId("charts"), newest.usage, (usage) => usageCharts(usage, { cpu: node.cpu_cores * 1e9, memory: node.memory, disk: node.disk }, "Disk"));
  fill(byId("problems"), newest.problems, (problems) => problems.map((problem) =>
    element("p", { class: "bad" }, placed(problem))));
  some(byId("remarks"), "remarks", newest.remarks, remarkItem, (button) => element("li", {}, button));
  showPods();
  some(byId("happened"), "events", newest.events, happened, (button) => element("li", {}, button));
  some(byId("listed"), "images", newest.images, imageRow, (button) => element("tr", {}, element("td", { colspan: 2 }, button)));
  const size = newest.images.reduce((sum, image) => sum + image.size, 0);
  write(byId("images-title"), `Images: ${newest.images.length}, ${amount(size)}`);
  writeTimes(newest.now);
}

async function lookInside(row) {
  try {
    row.showInside(await ask(`pod?uid=${encodeURIComponent(row.uid)}`));
    writeTimes(newest.now);
  } catch { /* the page's own request shows the error */ }
}

// Announced once, not at every try: a screen reader reads it out.
function announce(words) {
  if (words === trouble) return;
  const back = trouble && trouble !== "Asking" && !words;
  trouble = words;
  byId("state").className = words ? "alarm" : "";
  const shownIs = words && newestAt ? ` Shown is what was so at ${newestAt.toLocaleTimeString()}; trying again every ${PERIOD_MS / 1000} seconds.` : "";
  write(byId("state"), words ? words + shownIs : back ? "The agent answers again." : "");
  if (back) setTimeout(() => { if (!trouble) write(byId("state"), ""); }, 10 * PERIOD_MS);
}

async function refresh() {
  if (document.hidden) return;
  try {
    const found = await ask("data");
    if (newest && newest.node.version !== found.node.version) location.reload();
    newest = found;
    newestAt = new Date();
    show();
    await Promise.all([...rows.values()].filter((row) => row.isOpen).map(lookInside));
    announce(newest.node.trouble ? `Trouble: ${newest.node.trouble}` : "");
  } catch (error) {
    announce(error instanceof TypeError || error.name === "TimeoutError" ? "The agent does not answer." : error.message);
  }
}

async function follow() {
  await refresh();
  setTimeout(follow, PERIOD_MS);
}

byId("choice").addEventListener("submit", (event) => event.preventDefault());
byId("choice").addEventListener("input", () => { if (newest) showPods(); });
document.addEventListener("visibilitychange", refresh);
addEventListener("resize", spread);
follow();
