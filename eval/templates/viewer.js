"use strict";
// The dialogues of a report: filter, search, pages. All text goes into the page as text, never as markup.
(() => {
  const PAGE = 20;
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("viewer");
  const labels = {
    supporter: "Supporter", language: "Language", end: "Ended", fault: "Mark of the audit", crisis: "Crisis card",
  };
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const dot = (place) => {
    const element = make("span", "dot");
    element.style.background = data.supporters[place].colour;
    return element;
  };
  const cardOf = (dialogue) => data.cards[dialogue.card];
  const values = {
    supporter: (d) => [data.supporters[d.supporter].label],
    language: (d) => [cardOf(d).language],
    end: (d) => [d.end],
    fault: (d) => (d.faults.length ? d.faults : ["none"]),
    crisis: (d) => [cardOf(d).crisis ? "yes" : "no"],
  };
  let words = null; // lower-case text of every dialogue, made when first searched
  const textOf = (d) => [d.card, cardOf(d).text, ...d.turns.map((turn) => turn.text)].join("\n").toLowerCase();

  const controls = make("div", "controls");
  const search = make("input");
  search.type = "search";
  search.id = "search";
  search.placeholder = "Search cards and dialogues";
  search.setAttribute("aria-label", search.placeholder);
  controls.append(search);
  const chosen = {};
  for (const [name, of] of Object.entries(values)) {
    const counts = new Map();
    for (const d of data.dialogues) for (const v of of(d)) counts.set(v, (counts.get(v) || 0) + 1);
    if (counts.size < 2) continue;
    const label = make("label", "", labels[name] + " ");
    const select = make("select");
    select.id = "filter-" + name;
    const all = make("option", "", "all");
    all.value = "";
    select.append(all);
    for (const [value, count] of [...counts].sort((a, b) => (a[0] < b[0] ? -1 : 1))) {
      const option = make("option", "", value + " (" + count + ")");
      option.value = "=" + value;
      select.append(option);
    }
    select.addEventListener("change", () => show(0));
    chosen[name] = select;
    label.append(select);
    controls.append(label);
  }
  const status = make("p", "small");
  status.id = "status";
  status.setAttribute("role", "status");
  const list = make("div");
  list.id = "list";
  const pager = make("p", "pager");
  root.replaceChildren(controls, status, list, pager);

  const turnOf = (turn, language) => {
    const box = make("div", "turn " + (turn.who === "seeker" ? "seeker" : "supporter"));
    const who = make("div", "who", turn.who);
    if (turn.cut) who.append(make("span", "mark", "cut at the token limit"));
    for (const mark of turn.marks || []) who.append(make("span", "mark", mark));
    const text = make("div", "text", turn.text);
    text.dir = "auto";
    text.lang = language;
    box.append(who, text);
    if (turn.thinking) {
      const details = make("details", "thinking");
      const inside = make("div", "inside text", turn.thinking);
      inside.dir = "auto";
      details.append(make("summary", "", "thinking, seen by nobody else"), inside);
      box.append(details);
    }
    return box;
  };
  const dialogueOf = (d) => {
    const card = cardOf(d);
    const article = make("article", "dialogue");
    const head = make("h3");
    head.append(dot(d.supporter), make("bdi", "", data.supporters[d.supporter].label));
    if (d.sample) head.append(" · sample " + d.sample);
    const scores = d.scores.map((value, n) => data.columns[n] + " " + (value === null ? "–" : value.toFixed(1)));
    let line = scores.join(" · ");
    if (d.end !== "rounds") line += " · ended: " + d.end + (d.detail ? ": " + d.detail : "");
    article.append(head, make("p", "small", line));
    if (d.marks.length) {
      const marks = make("p", "small");
      for (const mark of d.marks) marks.append(make("span", "mark", mark));
      article.append(marks);
    }
    for (const turn of d.turns) article.append(turnOf(turn, card.language));
    return article;
  };
  const groupOf = (id, dialogues, open) => {
    const card = data.cards[id];
    const details = make("details", "group");
    const summary = make("summary");
    summary.append(make("bdi", "", id));
    for (const d of dialogues) {
      const score = make("span", "score");
      score.append(dot(d.supporter), d.average === null ? "–" : d.average.toFixed(1));
      summary.append(score);
    }
    const marked = dialogues.filter((d) => d.faults.length || d.fault).length;
    if (card.crisis) summary.append(make("span", "mark", "crisis card"));
    if (marked) summary.append(make("span", "mark", marked === 1 ? "1 marked" : marked + " marked"));
    details.append(summary);
    // Filled when opened: thousands of turns would otherwise be laid out for nobody.
    const fill = () => {
      if (details.childElementCount > 1) return;
      const inside = make("div", "inside");
      const text = make("p", "card text", card.text);
      text.dir = "auto";
      text.lang = card.language;
      const side = make("div", "side");
      for (const d of dialogues) side.append(dialogueOf(d));
      inside.append(text, side);
      details.append(inside);
    };
    details.addEventListener("toggle", fill);
    if (open) fill();
    details.open = open;
    return details;
  };
  const fits = (d, place, query) => {
    for (const [name, select] of Object.entries(chosen))
      if (select.value && !values[name](d).includes(select.value.slice(1))) return false;
    return !query || words[place].includes(query);
  };
  function show(page) {
    const query = search.value.trim().toLowerCase();
    if (query && !words) words = data.dialogues.map(textOf);
    const groups = new Map();
    let found = 0;
    data.dialogues.forEach((d, place) => {
      if (!fits(d, place, query)) return;
      found += 1;
      if (!groups.has(d.card)) groups.set(d.card, []);
      groups.get(d.card).push(d);
    });
    const ids = [...groups.keys()];
    const pages = Math.max(1, Math.ceil(ids.length / PAGE));
    const shown = ids.slice(page * PAGE, (page + 1) * PAGE);
    status.textContent = found + " of " + data.dialogues.length + " dialogues, " + ids.length + (ids.length === 1 ? " card" : " cards");
    list.replaceChildren(...shown.map((id) => groupOf(id, groups.get(id), shown.length === 1)));
    pager.replaceChildren();
    if (pages > 1) {
      const step = (text, to) => {
        const button = make("button", "", text);
        button.disabled = to < 0 || to >= pages;
        button.addEventListener("click", () => show(to));
        return button;
      };
      pager.append(step("‹ earlier", page - 1), " page " + (page + 1) + " of " + pages + " ", step("later ›", page + 1));
    }
  }
  let timer;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show(0), 150);
  });
  show(0);
})();
