// The page: what is typed goes to /score and /next, and their answers come back as colours and a list.
// Probabilities come as log10.

const WAIT_MS = 150; // after the last key: a request a word, not a request a letter
const RETRY_MS = 2000;
const LEVELS = [2, 5, 8, 11, 14]; // bits; the legend says the same
const END = "</s>";
const UNKNOWN = "<unk>";

const find = (id) => document.getElementById(id);
const text = find("text");
const list = find("next");
let spells = false;
let nextWords = [];
let chosen = 0;

// --- Talking to the server ------------------------------------------------------------------------------------------

class Refused extends Error {}

// Kept as long as the tab is open, and sent to this server alone.
let token = sessionStorage.getItem("bnce-token") ?? "";
const underWay = {}; // one question of a kind at a time: a newer one ends the older one

// Asks for the token; what was refused for the want of it is asked again once it is there.
function lock() {
  const given = token;
  token = "";
  sessionStorage.removeItem("bnce-token");
  find("unlock").hidden = false;
  find("token").focus();
  throw new Refused(given ? "The server refused this token." : "This server needs a token.");
}

async function ask(path, body) {
  underWay[path]?.abort();
  const control = (underWay[path] = new AbortController());
  const request = { signal: control.signal, headers: {} };
  if (token) request.headers.Authorization = `Bearer ${token}`;
  if (body) {
    request.method = "POST";
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const response = await fetch(path, request);
  if (response.status === 401) lock();
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.detail);
  return answer;
}

// Asks and shows what goes wrong; a server that is gone is asked again until it is back.
const problems = {};

async function attempt(kind, question) {
  try {
    await question();
    problems[kind] = "";
  } catch (error) {
    if (error.name === "AbortError") return;
    problems[kind] = error instanceof Refused ? error.message
      : "The server does not answer: is it still running? This page keeps trying.";
    if (!(error instanceof Refused)) setTimeout(() => attempt(kind, question), RETRY_MS);
  }
  find("problem").textContent = [...new Set(Object.values(problems).filter(Boolean))].join(" ");
  find("problem").hidden = !find("problem").textContent;
}

// --- The text and its words -----------------------------------------------------------------------------------------

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...content);
  return element;
}

function chip(word, log10Prob, isUnknown) {
  const bits = -log10Prob * Math.log2(10);
  const level = LEVELS.filter((bound) => bits >= bound).length;
  return make("span", `word ${isUnknown ? "unknown" : `level-${level}`}`, word,
    make("small", "", isUnknown ? "unknown" : bits.toFixed(2).replace("-", "−")));
}

async function score() {
  const sentences = text.value.split("\n").filter((line) => line.trim());
  find("words").classList.add("stale");
  const answer = sentences.length ? await ask("/score", { sentences, spell: spells }) : null;
  find("words").classList.remove("stale");
  find("words").replaceChildren(...(answer?.sentences ?? []).map(({ words, log10_probs: probs, oov }) =>
    make("p", "", ...words.map((word, place) => chip(word, probs[place], oov[place])))));
  if (!answer) {
    find("summary").textContent = "Nothing typed yet.";
    return;
  }
  const { num_words: count, num_oov: unknown, ppl_no_oov: perplexity } = answer.totals;
  const how = answer.mode === "unnormalised" ? "with the constant Z" : "with the softmax";
  find("summary").textContent = `${count} ${count === 1 ? "word" : "words"}, ${unknown} unknown. `
    + `Perplexity of the known words and sentence ends: ${perplexity?.toPrecision(4) ?? "–"}, ${how}.`;
}

function prompt() {
  const before = text.value.slice(0, text.selectionStart);
  return before.slice(before.lastIndexOf("\n") + 1);
}

// --- Next words -----------------------------------------------------------------------------------------------------

async function suggest() {
  nextWords = (await ask("/next", { prompt: prompt() })).next;
  list.replaceChildren(...nextWords.map(({ word, prob }, place) => {
    const percent = `${prob >= 0.0001 ? (100 * prob).toFixed(2) : (100 * prob).toExponential(0)} %`;
    const item = make("li", "", make("b", "", word === END ? `${END} (new line)` : word), percent);
    item.id = `next-${place}`;
    item.setAttribute("role", "option");
    if (word === UNKNOWN) item.setAttribute("aria-disabled", "true");
    item.addEventListener("click", () => insert(place));
    return item;
  }));
  choose(0);
}

function choose(place) {
  chosen = Math.min(Math.max(place, 0), nextWords.length - 1);
  [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === chosen)));
  list.setAttribute("aria-activedescendant", `next-${chosen}`);
}

function insert(place) {
  const word = nextWords[place]?.word;
  if (word === undefined || word === UNKNOWN) return;
  const before = text.value.slice(0, text.selectionStart);
  const gap = before && !/\s$/.test(before) && word !== END ? " " : "";
  text.setRangeText(word === END ? "\n" : `${gap}${word} `, text.selectionStart, text.selectionEnd, "end");
  text.focus();
  typed();
}

list.addEventListener("keydown", (event) => {
  const ways = {
    ArrowDown: () => choose(chosen + 1),
    ArrowUp: () => choose(chosen - 1),
    Enter: () => insert(chosen),
    Escape: () => text.focus(),
  };
  if (!ways[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  ways[event.key]();
});

// --- Start ----------------------------------------------------------------------------------------------------------

let timer = 0;
let promptBefore = "";

function typed() {
  promptBefore = prompt(); // the cursor moves, too: that must not be a second question
  clearTimeout(timer);
  timer = setTimeout(() => { attempt("score", score); attempt("next", suggest); }, WAIT_MS);
}

function moved() {
  if (document.activeElement === text && prompt() !== promptBefore) typed();
}

async function start() {
  const health = await ask("/health");
  if (health.run === undefined) lock(); // whoever has no token is told that the server runs, and nothing else
  spells = health.spells;
  find("run").textContent = health.run;
  document.title = `bnce ${health.run}`;
  const kind = { run: "a run", mixture: "a mixture", "n-gram": "an n-gram model" }[health.kind];
  find("facts").textContent = `${kind}, ${health.vocab_size?.toLocaleString("en") ?? "?"} words`
    + (health.log_z === null ? "" : `, ln Z = ${health.log_z.toFixed(3)}`);
  typed();
}

find("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  token = find("token").value.replace(/[^!-~]/g, ""); // what cannot stand in a header
  sessionStorage.setItem("bnce-token", token);
  find("token").value = "";
  find("unlock").hidden = true;
  attempt("health", start);
});
text.addEventListener("input", typed);
document.addEventListener("selectionchange", moved);
attempt("health", start);
