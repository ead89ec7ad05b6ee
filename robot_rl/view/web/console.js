// Page of the console: what the person's hands do goes to /socket 30 times a second. Where this page cannot be
// sure that the hands are still there, nothing moves.

const PERIOD = 33; // ms between messages
const LATE = 100; // ms without a tick after which the robot holds, and this page moves nothing any more

const $ = (id) => document.getElementById(id);
const KEYS = {
  w: [0, 1], s: [0, -1], a: [1, 1], d: [1, -1], r: [2, 1], f: [2, -1],
  o: [3, 1], u: [3, -1], i: [4, 1], k: [4, -1], j: [5, 1], l: [5, -1],
};
const WALK = { w: KEYS.w, s: KEYS.s, a: KEYS.a, d: KEYS.d, j: [2, 1], l: [2, -1] };
const PRESSES = { y: "success", n: "failure", Enter: "reset" };
const SHIFT = 0.25; // share of the speed while Shift is held

let me = "";
let news = { holder: "", legged: false };
const keys = new Map(); // axis and value by key
const pads = new Map(); // deflections by pad
let pressed = [];
let holding = false;
let pointer = false; // a button or finger is down in the 3-D view
let shift = false;
let gripper = 0;
let closed = false;
let ticked = performance.now();

let socket = null;
const send = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
const seated = () => me !== "" && news.holder === me;

function letGo() {
  keys.clear();
  pads.clear();
  pressed = [];
  holding = shift = pointer = false;
  $("keep").checked = false;
  for (const knob of document.querySelectorAll(".pad i")) knob.style.transform = "";
}

function motion() {
  const axes = [0, 0, 0, 0, 0, 0];
  const add = (axis, value) => (axes[axis] = Math.max(-1, Math.min(1, axes[axis] + value)));
  for (const [axis, value] of keys.values()) add(axis, shift ? SHIFT * value : value);
  for (const deflections of pads.values()) for (const [axis, value] of deflections) add(axis, value);
  return axes;
}

const hasControl = () => holding || $("keep").checked || keys.size > 0 || pads.size > 0;

// Without sight of the hands neither the person's motion nor the policy goes on.
function rest(why) {
  if (!seated() || !hasControl()) return;
  letGo();
  $("keep").checked = true;
  $("answer").textContent = `${why}: you keep control, at rest; clear keep to hand back`;
}

function tick() {
  const now = performance.now();
  if (now - ticked > LATE) rest("this page stood still");
  ticked = now;
  if (!seated()) return;
  const [held, moving] = [hasControl(), motion()];
  if (!held) gripper = 0; // the next takeover keeps the policy's gripper width
  send({ type: "input", held, motion: moving, gripper, press: pressed, pointer, speed: Number($("speed").value) });
  pressed = [];
}
// A worker beats, because Chrome holds a page's own timers back for 100 ms after each touch. The page still has to answer.
const beat = new Worker(URL.createObjectURL(new Blob([`setInterval(() => postMessage(0), ${PERIOD})`])));
beat.onmessage = tick;

function grip(value) {
  gripper = value;
  closed = value < 0;
}

function stop() {
  letGo();
  send({ type: "event", word: "terminate" });
}

// ---- keys, also while the pointer is in the 3-D view ----
function onKey(event) {
  if (event.target.closest?.("input:not([type=checkbox]), textarea, select")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const down = event.type === "keydown";
  if (key === "x" && down) stop();
  if (!seated() || event.ctrlKey || event.metaKey || event.altKey) return;
  shift = event.shiftKey;
  const axis = (news.legged ? WALK : KEYS)[key];
  if (axis && !event.repeat) down ? keys.set(key, axis) : keys.delete(key); // a repeat takes nothing over
  else if (!down || event.repeat) return void (axis && event.stopImmediatePropagation());
  else if (PRESSES[key]) pressed.push(PRESSES[key]);
  else if (key === " " && !news.legged) grip(closed ? 1 : -1);
  else if (key === "h") $("keep").checked = !$("keep").checked;
  else return;
  event.preventDefault();
  event.stopImmediatePropagation(); // viser moves its camera by the same keys
}
function listen(target) {
  for (const type of ["keydown", "keyup"]) target.addEventListener(type, onKey, true);
}
listen(window);
$("scene").addEventListener("load", () => {
  const view = $("scene").contentWindow;
  listen(view);
  view.addEventListener("pointerdown", () => (pointer = true), true);
  for (const type of ["pointerup", "pointercancel"]) view.addEventListener(type, () => (pointer = false), true);
});
window.addEventListener("blur", () => setTimeout(() => document.hasFocus() || rest("this page lost the keyboard")));
document.addEventListener("visibilitychange", () => document.hidden && rest("this page was hidden"));

// ---- pads ----
function pad(id, axes) {
  const element = $(id), knob = element.firstElementChild;
  const release = () => { pads.delete(id); knob.style.transform = ""; };
  const move = (event) => {
    const box = element.getBoundingClientRect();
    const clip = (value) => Math.max(-1, Math.min(1, value));
    const x = clip((2 * (event.clientX - box.left)) / box.width - 1);
    const y = clip((2 * (event.clientY - box.top)) / box.height - 1);
    const deflections = axes(x, y);
    pads.set(id, deflections);
    const [u, v] = [deflections.some(([, , along]) => along !== "y") ? x : 0, deflections.some(([, , along]) => along !== "x") ? y : 0];
    knob.style.transform = `translate(${(u * box.width) / 3}px, ${(v * box.height) / 3}px)`;
  };
  element.addEventListener("pointerdown", (event) => {
    if (!seated()) return;
    element.setPointerCapture(event.pointerId);
    move(event);
  });
  element.addEventListener("pointermove", (event) => pads.has(id) && move(event));
  for (const type of ["pointerup", "pointercancel", "lostpointercapture"]) element.addEventListener(type, release);
}
pad("plane", (x, y) => [[0, -y, "xy"], [1, -x, "xy"]]);
pad("height", (x, y) => [[2, -y, "y"]]);
pad("yaw", (x) => [[news.legged ? 2 : 5, -x, "x"]]);

// ---- buttons ----
const hold = $("hold");
hold.addEventListener("pointerdown", (event) => { holding = true; hold.setPointerCapture(event.pointerId); });
for (const type of ["pointerup", "pointercancel", "lostpointercapture"]) hold.addEventListener(type, () => (holding = false));
$("open").onclick = () => grip(1);
$("close").onclick = () => grip(-1);
$("stop").onclick = stop;
$("seat").onclick = () => { letGo(); send({ type: "seat", take: !seated() }); };
for (const button of document.querySelectorAll("[data-press]")) button.onclick = () => pressed.push(button.dataset.press);
for (const button of document.querySelectorAll("[data-event]")) {
  button.onclick = () => send({ type: "event", word: button.dataset.event });
}
document.addEventListener("click", () => document.activeElement.id !== "text" && document.activeElement.blur()); // Space
$("say").onsubmit = (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text) send({ type: "say", text });
  $("text").blur();
};

// ---- news ----
function show() {
  const mine = seated();
  document.body.className = news.legged ? "legged" : "";
  $("robot").textContent = news.robot;
  $("control").textContent = !news.alive ? "no state" : news.control === "correcting" && mine ? "you have control" : news.control || "no session";
  $("control").className = `pill ${news.alive ? news.control : "stopped"}`;
  $("phase").textContent = news.phase ? `episode ${news.number}: ${news.phase}${news.instruction ? `, "${news.instruction}"` : ""}` : "";
  $("score").textContent = news.episodes ? `${news.won} of ${news.episodes} succeeded` : "";
  const again = news.warning.startsWith("stopped") ? ". Once it is safe, and all has rested for half a second: Reset" : "";
  $("warning").textContent = news.warning + again;
  $("hands").disabled = !mine;
  $("seat").textContent = mine ? "Leave the controls" : news.holder ? "Take the controls (in use)" : "Take the controls";
  $("seat").className = mine ? "main mine" : "main";
}

function hear({ data }) {
  const message = JSON.parse(data);
  if (message.page) {
    me = message.page;
    $("answer").textContent = "";
    $("scene").src = `/scene/${me}/`;
  } else if ("answer" in message) $("answer").textContent = message.answer;
  else {
    if (seated() && message.holder !== me) letGo();
    if (message.holder !== news.holder) $("answer").textContent = "";
    news = message;
    show();
  }
}

function connect() {
  socket = new WebSocket(`${location.origin.replace("http", "ws")}/socket`);
  socket.onmessage = hear;
  socket.onclose = (event) => {
    letGo();
    news = { ...news, holder: "" };
    show();
    $("control").className = "pill stopped";
    $("control").textContent = "not connected";
    $("answer").textContent = event.reason || "the connection is lost: trying again; or start the console again, and open its new address";
    if (!event.reason) setTimeout(connect, 1000);
  };
}
connect();
