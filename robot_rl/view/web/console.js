// Page of the console: what the person's hands do goes to /socket 30 times a second. Where this page cannot be
// sure that the hands are still there, nothing moves.

const PERIOD = 33; // ms between messages
const LATE = 100; // ms without a tick after which the robot holds, and this page moves nothing any more
const SHIFT = 0.25; // share of the speed while Shift is held

const $ = (id) => document.getElementById(id);
// Axis and value by the key's place on the keyboard: its letter changes with Alt, Shift and the layout.
const KEYS = {
  KeyW: [0, 1], KeyS: [0, -1], KeyA: [1, 1], KeyD: [1, -1], KeyR: [2, 1], KeyF: [2, -1],
  KeyO: [3, 1], KeyU: [3, -1], KeyI: [4, 1], KeyK: [4, -1], KeyJ: [5, 1], KeyL: [5, -1],
};
const WALK = { KeyW: KEYS.KeyW, KeyS: KEYS.KeyS, KeyA: KEYS.KeyA, KeyD: KEYS.KeyD, KeyJ: [2, 1], KeyL: [2, -1] };
const PRESSES = { y: "success", n: "failure", Enter: "reset" };

let me = "";
let news = { holder: "", legged: false, count: 0 };
const keys = new Map(); // axis and value by key
const pads = new Map(); // deflections by pad
const fingers = new Map(); // pointer that is down on each pad or button
const inView = new Set(); // pointers that are down in the 3-D view
const pressed = new Set();
let still = false; // forget where the gizmo was dragged
let shift = false;
let gripper = 0;
let closed = false;
let ticked = performance.now();

let socket = null;
const open = () => socket?.readyState === WebSocket.OPEN;
const send = (message) => open() && socket.send(JSON.stringify(message));
const seated = () => me !== "" && news.holder === me;
const hasControl = () => fingers.has("hold") || $("keep").checked || keys.size > 0 || pads.size > 0;
const say = (text) => ($("answer").textContent = text);

function letGo() {
  for (const each of [keys, pads, fingers, inView, pressed]) each.clear();
  shift = false;
  $("keep").checked = false;
  for (const knob of document.querySelectorAll(".pad i")) knob.style.transform = "";
}

// Without sight of the hands neither the person's motion nor the policy goes on.
function rest(why) {
  const [had, drags] = [hasControl(), inView.size > 0];
  letGo();
  still = true;
  if (!seated() || !(had || drags)) return;
  $("keep").checked = had || news.control === "correcting";
  say($("keep").checked ? `${why}: you keep control, at rest; clear keep to hand back` : `${why}: take hold again`);
}

function motion() {
  const axes = [0, 0, 0, 0, 0, 0];
  const add = (axis, value) => (axes[axis] = Math.max(-1, Math.min(1, axes[axis] + value)));
  for (const [axis, value] of keys.values()) add(axis, shift ? SHIFT * value : value);
  for (const deflections of pads.values()) for (const [axis, value] of deflections) add(axis, value);
  return axes;
}

function tick() {
  const now = performance.now();
  if (now - ticked > LATE) rest("this page stood still");
  ticked = now;
  if (!document.hasFocus() && (keys.size > 0 || inView.size > 0)) rest("this page lost the keyboard");
  if (!seated() || !open() || socket.bufferedAmount > 0) return; // what cannot leave now would arrive too late
  const held = hasControl();
  if (!held) gripper = 0; // the next takeover keeps the policy's gripper width
  send({
    type: "input", held, motion: motion(), gripper, press: [...pressed], pointer: inView.size > 0, still,
    speed: Number($("speed").value), seen: news.count,
  });
  pressed.clear();
  still = false;
}
// A worker beats, because Chrome holds a page's own timers back for 100 ms after each touch. The page still has to answer.
const beat = new Worker(URL.createObjectURL(new Blob([`setInterval(() => postMessage(0), ${PERIOD})`])));
beat.onmessage = tick;

function grip(value) {
  gripper = value;
  closed = value < 0;
}

function stop() {
  const mine = seated() && hasControl();
  letGo();
  $("keep").checked = mine; // the policy must not act before the stop has arrived
  still = true;
  if (seated()) pressed.add("stop");
  if (!send({ type: "event", word: "terminate" }) && !open()) say("NOT STOPPED: no connection; press the robot's own stop");
}

// ---- keys, also while the pointer is in the 3-D view ----
function onKeyUp(event) {
  shift = event.shiftKey;
  keys.delete(event.code);
}
function onKeyDown(event) {
  if (event.target.closest?.("input:not([type=checkbox]), textarea, select")) return;
  if (event.key.toLowerCase() === "x") stop();
  if (!seated()) return;
  shift = event.shiftKey;
  if (event.ctrlKey || event.metaKey || event.altKey) return void (keys.size && rest("a key of the browser was pressed"));
  const axis = (news.legged ? WALK : KEYS)[event.code];
  if (axis && !event.repeat) keys.set(event.code, axis); // a repeat takes nothing over
  else if (!axis && !event.repeat) {
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (PRESSES[key]) pressed.add(PRESSES[key]);
    else if (key === " " && !news.legged) grip(closed ? 1 : -1);
    else if (key === "h") $("keep").checked = !$("keep").checked;
    else return;
  }
  event.preventDefault();
  event.stopImmediatePropagation(); // viser moves its camera by the same keys
}
function listen(target) {
  target.addEventListener("keydown", onKeyDown, true);
  target.addEventListener("keyup", onKeyUp, true);
  target.addEventListener("blur", () => setTimeout(() => document.hasFocus() || rest("this page lost the keyboard")));
}
listen(window);
$("scene").addEventListener("load", () => {
  const view = $("scene").contentWindow;
  listen(view);
  inView.clear();
  view.addEventListener("pointerdown", (event) => event.button === 0 && inView.add(event.pointerId), true);
  view.addEventListener("pointermove", (event) => event.buttons & 1 && inView.add(event.pointerId), true); // it still drags
  view.addEventListener("pointerup", (event) => inView.delete(event.pointerId), true);
  view.addEventListener("pointercancel", () => rest("the touch was interrupted"), true);
});
document.addEventListener("focusin", (event) => event.target.matches("#text, #speed") && keys.size && rest("the keyboard is elsewhere"));
document.addEventListener("visibilitychange", () => document.hidden && rest("this page was hidden"));
document.addEventListener("contextmenu", (event) => event.preventDefault());

// ---- pads and buttons that are held ----
function finger(id, move, release) {
  const element = $(id);
  const mine = (event) => fingers.get(id) === event.pointerId;
  const end = () => { fingers.delete(id); release(); };
  element.addEventListener("pointerdown", (event) => {
    if (!seated() || event.button !== 0 || fingers.has(id)) return;
    fingers.set(id, event.pointerId);
    element.setPointerCapture(event.pointerId);
    move(event);
  });
  element.addEventListener("pointermove", (event) => mine(event) && (event.buttons ? move(event) : end()));
  for (const type of ["pointerup", "lostpointercapture"]) element.addEventListener(type, (event) => mine(event) && end());
  element.addEventListener("pointercancel", (event) => mine(event) && rest("the touch was interrupted"));
}
function pad(id, axes, horizontal, vertical) {
  const element = $(id), knob = element.firstElementChild;
  const move = (event) => {
    const box = element.getBoundingClientRect();
    const clip = (value) => Math.max(-1, Math.min(1, value));
    const x = horizontal * clip((2 * (event.clientX - box.left)) / box.width - 1);
    const y = vertical * clip((2 * (event.clientY - box.top)) / box.height - 1);
    pads.set(id, axes(x, y));
    knob.style.transform = `translate(${(x * box.width) / 3}px, ${(y * box.height) / 3}px)`;
  };
  finger(id, move, () => { pads.delete(id); knob.style.transform = ""; });
}
pad("plane", (x, y) => [[0, -y], [1, -x]], 1, 1);
pad("height", (x, y) => [[2, -y]], 0, 1);
pad("yaw", (x) => [[news.legged ? 2 : 5, -x]], 1, 0);
finger("hold", () => {}, () => {});

// ---- buttons ----
$("open").onclick = () => grip(1);
$("close").onclick = () => grip(-1);
$("stop").onclick = stop;
$("seat").onclick = () => { letGo(); send({ type: "seat", take: !seated() }); };
for (const button of document.querySelectorAll("[data-press]")) button.onclick = () => pressed.add(button.dataset.press);
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
  const who = news.control === "correcting" && mine ? "you have control" : news.control || "no session";
  $("control").textContent = news.alive ? who : "no state";
  $("control").className = `pill ${news.alive ? news.control : "stopped"}`;
  const score = news.episodes ? `, ${news.won} of ${news.episodes} succeeded` : "";
  const asked = news.instruction ? `, "${news.instruction}"` : "";
  $("phase").textContent = news.phase ? `episode ${news.number}: ${news.phase}${score}${asked}` : "";
  const again = news.warning.startsWith("stopped") ? ". Once it is safe, and all has rested for half a second: Reset" : "";
  const waits = mine && news.latched ? " The robot waits for you: hold it or move it; when you let go, the policy goes on." : "";
  $("warning").textContent = news.warning + again + waits;
  $("hands").disabled = !mine;
  $("seat").textContent = mine ? "Leave the controls" : news.holder ? "Take the controls (in use)" : "Take the controls";
  $("seat").className = mine ? "main mine" : "main";
}

function hear({ data }) {
  const message = JSON.parse(data);
  if (message.page) {
    me = message.page;
    say("");
    $("scene").src = `/scene/${message.scene}/`;
  } else if ("answer" in message) say(message.answer);
  else {
    if (seated() && message.holder !== me) letGo();
    if (message.holder !== news.holder) say("");
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
    say(event.reason || "the connection is lost: trying again; or start the console again, and open its new address");
    setTimeout(connect, event.reason ? 3000 : 1000);
  };
}
connect();
