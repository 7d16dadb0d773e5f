// The log of a job: filter by rank and text, follow it as a stream while the page is visible, download it.
"use strict";

(() => {
  const section = document.getElementById("logs");
  const tools = document.getElementById("log-tools");
  const log = document.getElementById("log");
  const state = document.getElementById("log-state");
  const download = document.getElementById("log-download");
  const address = `/api/v1/jobs/${encodeURIComponent(section.dataset.job)}/logs`;
  const KEPT_LINES = 5000;
  const SHOWN_LINES = 500;
  let current = null; // the AbortController of the newest request; the answers of earlier ones are not shown
  let timer = 0;

  const live = () => document.getElementById("pulse").dataset.live === "yes";

  const query = (tail) => {
    const wanted = { tail };
    for (const name of ["rank", "attempt", "grep", "stream"]) {
      const value = tools.elements[name].value.trim();
      if (value && !(name === "stream" && value === "worker")) wanted[name] = value;
    }
    return new URLSearchParams(wanted);
  };

  const problemOf = async (answer) => {
    try {
      return (await answer.json()).detail;
    } catch {
      return `the service answered ${answer.status}`;
    }
  };

  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 24;

  const show = (text, whole) => {
    const stick = whole || atEnd();
    if (whole) log.textContent = text;
    else log.append(text);
    while (log.childNodes.length > KEPT_LINES) log.firstChild.remove();
    if (stick) log.scrollTop = log.scrollHeight;
  };

  const stop = () => {
    current?.abort();
    current = null;
  };

  const begin = (wanted) => {
    stop();
    const mine = (current = new AbortController());
    return [mine, fetch(`${address}?${wanted}`, { signal: mine.signal })];
  };

  const fetchOnce = async () => {
    const wanted = query(SHOWN_LINES);
    const [mine, asked] = begin(wanted);
    try {
      const answer = await asked;
      const text = answer.ok ? await answer.text() : await problemOf(answer);
      if (mine !== current) return;
      if (answer.ok) show(text, true);
      state.textContent = answer.ok ? describe(text, wanted.get("grep")) : text;
    } catch {
      if (mine === current) state.textContent = "The log could not be loaded.";
    }
  };

  const describe = (text, grep) => {
    const count = text ? text.split("\n").length - 1 : 0;
    const found = grep ? ` with “${grep}”` : "";
    if (!count) return found ? `No lines${found}.` : "No output yet.";
    return `${count === SHOWN_LINES ? "The last " : ""}${count} line${count === 1 ? "" : "s"}${found}.`;
  };

  const follow = async () => {
    const [mine, asked] = begin(`${query(SHOWN_LINES)}&follow=true`);
    state.textContent = "Following";
    try {
      const answer = await asked;
      if (!answer.ok) {
        const problem = await problemOf(answer);
        if (mine === current) state.textContent = problem;
        return;
      }
      if (mine !== current) return;
      show("", true);
      state.textContent = "Following. No output yet.";
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (mine !== current) return;
        if (done) break;
        show(value, false);
        state.textContent = "Following";
      }
      if (live()) again();
      else state.textContent = "The job has ended. The log is complete.";
    } catch {
      if (mine === current) again();
    }
  };

  const again = () => {
    state.textContent = "The connection was lost. Reconnecting.";
    clearTimeout(timer);
    timer = setTimeout(start, 2000);
  };

  // Only a visible page has a stream, because a browser opens few connections to one service.
  const start = () => {
    clearTimeout(timer);
    download.href = `${address}?${query(0)}&whole=true`;
    if (tools.elements.follow.checked && !document.hidden) follow();
    else fetchOnce();
  };

  tools.addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
  tools.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(start, 300);
  });
  document.addEventListener("visibilitychange", () => {
    if (!tools.elements.follow.checked) return;
    if (document.hidden) {
      stop();
      state.textContent = "Paused while this page is hidden.";
    } else start();
  });
  tools.elements.follow.checked = live();
  if (live()) start();
})();
