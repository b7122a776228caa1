// The page: what is typed goes to /score and /next, and their answers come back as colours, numbers and a list.
// Probabilities come as log10; ln Z is natural.

const WAIT_MS = 150; // after the last key: a request a word, not a request a letter
const RETRY_MS = 2000;
const LEVELS = [2, 5, 8, 11, 14]; // bits; the legend says the same
const NUM_NEXT = 10;
const END = "</s>";
const UNKNOWN = "<unk>";

const find = (id) => document.getElementById(id);
const text = find("text");
const list = find("next");
let selfNormalised = true;
let scores = null; // the last answer of /score
let nextWords = [];
let chosen = 0;

// --- Talking to the server ------------------------------------------------------------------------------------------

class Refused extends Error {}

// Kept as long as the tab is open, and sent to this server alone.
let token = sessionStorage.getItem("bnce-token") ?? "";

// Asks for the token; what was refused for the want of it is asked again once it is there.
function lock() {
  const given = token;
  token = "";
  sessionStorage.removeItem("bnce-token");
  find("unlock").hidden = false;
  find("token").focus();
  throw new Refused(given ? "The server refused this token." : "This server needs a token.");
}

function unlock(event) {
  event.preventDefault();
  token = find("token").value.replace(/[^!-~]/g, ""); // what cannot stand in a header
  sessionStorage.setItem("bnce-token", token);
  find("token").value = "";
  find("unlock").hidden = true;
  start();
}

// One question of a kind at a time: a newer one ends the older one.
const underWay = {};

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

const problems = {};

function tell(kind, sentence) {
  problems[kind] = sentence;
  const told = [...new Set(Object.values(problems).filter(Boolean))].join(" ");
  const place = find("problem");
  if (place.textContent !== told) place.textContent = told;
  place.hidden = !told;
}

// Runs a question and shows what goes wrong; a server that is gone is asked again until it is back.
async function attempt(kind, question, again) {
  try {
    await question();
    tell(kind, "");
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error instanceof Refused) {
      tell(kind, error.message);
    } else {
      tell(kind, "The server does not answer: is it still running? This page keeps trying.");
      setTimeout(again, RETRY_MS);
    }
  }
}

// --- The text -------------------------------------------------------------------------------------------------------

function lines() {
  return text.value.split("\n").filter((line) => line.trim());
}

function prompt() {
  const before = text.value.slice(0, text.selectionStart);
  return before.slice(before.lastIndexOf("\n") + 1);
}

async function score() {
  const sentences = lines();
  for (const place of [find("words"), document.querySelector(".table")]) place.classList.add("stale");
  await attempt("score", async () => {
    const mode = selfNormalised ? { mode: "unnormalised", exact: true } : { mode: "normalised" };
    scores = sentences.length ? await ask("/score", { sentences, ...mode }) : null;
    show();
  }, score);
}

async function suggest() {
  await attempt("next", async () => {
    const answer = await ask("/next", { prompt: prompt(), k: NUM_NEXT });
    nextWords = answer.next;
    chosen = 0;
    showNext();
  }, suggest);
}

let typedTimer = 0;
let movedTimer = 0;
let promptBefore = "";

function typed() {
  // The cursor moves, too: that must not be a second question.
  promptBefore = prompt();
  clearTimeout(typedTimer);
  typedTimer = setTimeout(() => { score(); suggest(); }, WAIT_MS);
}

function moved() {
  if (document.activeElement !== text || prompt() === promptBefore) return;
  promptBefore = prompt();
  clearTimeout(movedTimer);
  movedTimer = setTimeout(suggest, WAIT_MS);
}

// --- Next words -----------------------------------------------------------------------------------------------------

function make(tag, className, content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content !== undefined) element.textContent = content;
  return element;
}

function percent(prob) {
  return prob >= 0.0001 ? `${(100 * prob).toFixed(2)} %` : `${(100 * prob).toExponential(0)} %`;
}

function showNext() {
  const most = Math.max(...nextWords.map((word) => word.prob), 0);
  list.replaceChildren(...nextWords.map((word, place) => {
    const item = make("li");
    item.id = `next-${place}`;
    item.setAttribute("role", "option");
    item.append(make("span", "name", word.word === END ? `${END} (new line)` : word.word));
    const share = make("span", "share");
    share.append(make("i"));
    share.firstChild.style.width = `${(100 * word.prob) / (most || 1)}%`;
    item.append(share, make("span", "percent", percent(word.prob)));
    if (word.word === UNKNOWN) item.setAttribute("aria-disabled", "true");
    item.addEventListener("click", () => insert(place));
    return item;
  }));
  choose(chosen);
}

function choose(place) {
  chosen = Math.min(Math.max(place, 0), Math.max(nextWords.length - 1, 0));
  [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === chosen)));
  if (list.children.length) list.setAttribute("aria-activedescendant", `next-${chosen}`);
}

function insert(place) {
  const word = nextWords[place]?.word;
  if (word === undefined || word === UNKNOWN) return;
  const before = text.value.slice(0, text.selectionStart);
  const after = text.value.slice(text.selectionEnd);
  const gap = before && !/\s$/.test(before) && word !== END ? " " : "";
  const piece = word === END ? "\n" : `${gap}${word} `;
  text.value = before + piece + (word === END ? after : after.replace(/^ /, ""));
  text.focus();
  text.selectionStart = text.selectionEnd = before.length + piece.length;
  typed();
}

list.addEventListener("keydown", (event) => {
  const ways = {
    ArrowDown: () => choose(chosen + 1),
    ArrowUp: () => (chosen === 0 ? text.focus() : choose(chosen - 1)),
    Home: () => choose(0),
    End: () => choose(nextWords.length - 1),
    Enter: () => insert(chosen),
    " ": () => insert(chosen),
    Escape: () => text.focus(),
  };
  if (!ways[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  ways[event.key]();
});

text.addEventListener("keydown", (event) => {
  const atEnd = text.selectionStart === text.value.length;
  if (event.key === "ArrowDown" && atEnd && nextWords.length && !event.shiftKey) {
    event.preventDefault();
    list.focus();
  }
});

// --- Surprisal ------------------------------------------------------------------------------------------------------

const bits = (log10Prob) => -log10Prob * Math.log2(10);

function level(log10Prob) {
  const found = LEVELS.findIndex((bound) => bits(log10Prob) < bound);
  return found < 0 ? LEVELS.length : found;
}

// What the table shows of a log10 probability, in the chosen unit.
function inUnit(log10Prob) {
  return find("unit").value === "bits" ? bits(log10Prob) : log10Prob;
}

const number = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
const signed = (value) => (value >= 0 ? "+" : "") + number(value);

// A word with both of its probabilities; a softmax run has the exact one alone.
function* everyWord() {
  for (const [line, sentence] of scores.sentences.entries()) {
    for (const [place, word] of sentence.words.entries()) {
      const given = sentence.log10_probs[place];
      yield {
        line, place, word, oov: sentence.oov[place],
        unnormalised: selfNormalised ? given : null,
        exact: selfNormalised ? sentence.exact_log10_probs[place] : given,
        logZ: selfNormalised ? sentence.log_z[place] : null,
      };
    }
  }
}

function show() {
  for (const place of [find("words"), document.querySelector(".table")]) place.classList.remove("stale");
  find("table").hidden = !scores;
  if (!scores) {
    find("summary").textContent = "Nothing typed yet.";
    find("words").replaceChildren();
    return;
  }
  const all = [...everyWord()];
  showWords(all);
  showTable(all);
  showSummary();
}

function showWords(all) {
  const by = selfNormalised ? find("colour").value : "exact";
  const sentences = scores.sentences.map(() => make("p"));
  for (const word of all) {
    const classes = ["word", `level-${level(word[by])}`, word.oov && "oov", word.word === END && "end"];
    const chip = make("span", classes.filter(Boolean).join(" "));
    chip.append(make("b", "", word.word));
    const values = make("small");
    if (selfNormalised) values.append(number(inUnit(word.unnormalised)), make("i", "sign", "|"));
    values.append(number(inUnit(word.exact)));
    chip.append(values);
    sentences[word.line].append(chip);
  }
  find("words").replaceChildren(...sentences);
}

function showTable(all) {
  const unit = find("unit").value === "bits" ? "Surprisal in bits, −log₂ p" : "log₁₀ p";
  find("caption").textContent = selfNormalised
    ? `${unit}. Difference: unnormalised − exact. ln Z(context) is a natural logarithm; the constant is ${number(scores.log_z, 3)}.`
    : `${unit}, with the softmax.`;
  find("rows").replaceChildren(...all.map((word) => {
    const row = make("tr", word.place === 0 && word.line > 0 ? "first" : "");
    const name = make("th", "", word.word);
    name.scope = "row";
    if (word.oov) name.append(make("span", "mark", "OOV"));
    row.append(name, ...cells(word.unnormalised, word.exact, word.logZ));
    return row;
  }));
  const { totals, exact_totals: exact, log_z_mean: mean } = scores;
  const total = make("tr");
  const name = make("th", "", selfNormalised ? "total; mean of ln Z" : "total");
  name.scope = "row";
  total.append(name, ...(selfNormalised
    ? cells(totals.log10_prob, exact.log10_prob, mean)
    : cells(null, totals.log10_prob, null)));
  find("totals").replaceChildren(total);
}

function cells(unnormalised, exact, logZ) {
  if (!selfNormalised) return [make("td", "", number(inUnit(exact)))];
  return [
    make("td", "", number(inUnit(unnormalised))),
    make("td", "", number(inUnit(exact))),
    make("td", "", signed(inUnit(unnormalised) - inUnit(exact))),
    make("td", "", number(logZ, 3)),
  ];
}

function showSummary() {
  const { totals, exact_totals: exact, log_z_mean: mean } = scores;
  const truth = selfNormalised ? exact : totals;
  const counted = `${totals.num_words} ${totals.num_words === 1 ? "word" : "words"}, ${totals.num_oov} OOV.`;
  const perplexity = (value) => (value === null ? "–" : value.toPrecision(4));
  find("summary").textContent = selfNormalised
    ? `${counted} Perplexity: unnormalised ${perplexity(totals.ppl)}, exact ${perplexity(truth.ppl)}. `
      + `Mean ln Z(context): ${number(mean, 3)}, constant ${number(scores.log_z, 3)}.`
    : `${counted} Perplexity: ${perplexity(truth.ppl)}.`;
}

// --- Start ----------------------------------------------------------------------------------------------------------

async function start() {
  await attempt("health", async () => {
    const health = await ask("/healthz");
    // Whoever has no token, or a wrong one, is told that the server runs, and nothing else.
    if (health.run === undefined) lock();
    // The browser would go there without the token.
    find("metrics").hidden = Boolean(token);
    // A mixture has several constants: the page shows its exact values alone.
    selfNormalised = health.log_z !== null;
    document.body.classList.toggle("softmax", !selfNormalised);
    find("run").textContent = health.run;
    document.title = `bnce ${health.run}`;
    const words = health.vocab_size === null ? "?" : health.vocab_size.toLocaleString("en");
    const kinds = { run: "trained with the softmax", mixture: "a mixture", "n-gram": "an n-gram model" };
    find("facts").textContent = selfNormalised
      ? `${words} words, self-normalised with ln Z = ${number(health.log_z, 3)}`
      : `${words} words, ${kinds[health.kind]}: all values are exact`;
    find("numbers-legend").textContent = selfNormalised ? "Below a word: unnormalised | exact." : "";
    score();
    suggest();
  }, start);
}

find("unlock").addEventListener("submit", unlock);
text.addEventListener("input", typed);
document.addEventListener("selectionchange", moved);
find("unit").addEventListener("change", show);
find("colour").addEventListener("change", show);
start();
