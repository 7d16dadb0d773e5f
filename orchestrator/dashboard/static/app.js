// Keeps a page up to date: fetches its <main> and morphs it, so that focus, scroll position and open details stay.
// Also: keyboard shortcuts, relative times, copy buttons, and the answers of actions.
"use strict";

(() => {
  const main = document.getElementById("main");
  const periodMs = Number(main.dataset.poll ?? 0) * 1000;
  const offline = document.getElementById("offline");
  let shown = { address: "", tag: "" };
  let waiting = false;
  let lostAt = null;

  // --- morphing: keeps what the user has opened, selected or typed
  const rules = Idiomorph.defaults.callbacks;
  Idiomorph.defaults.ignoreActiveValue = true;
  rules.beforeNodeMorphed = (old) => !(old.nodeType === Node.ELEMENT_NODE && old.hasAttribute("data-keep"));
  rules.beforeAttributeUpdated = (name, node) => {
    if (name === "open") return !node.matches("details");
    if (name === "checked" || name === "selected") return false;
    if (name === "hidden") return !node.matches("[data-all], #compare-chosen");
    if (name === "value") return node.matches("input[type=hidden], progress, option");
    return true;
  };

  // --- polling
  const isSelecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  };
  const poll = () => {
    if (periodMs && !waiting && !document.hidden && !isSelecting()) htmx.trigger(main, "poll");
  };
  const pollAnew = () => {
    shown = { address: "", tag: "" };
    poll();
  };

  const seconds = (ms) => (ms < 60000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60000)} min`);
  const trouble = document.getElementById("trouble");
  const setReach = (problem) => {
    if (problem === null) {
      lostAt = null;
      offline.hidden = true;
      return;
    }
    lostAt ??= Date.now();
    const since = Date.now() - lostAt;
    offline.textContent = `${problem}${since > 1500 ? `, for ${seconds(since)}` : ""}. This page shows the last known state and reconnects by itself.`;
    offline.hidden = false;
  };

  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb === "get") event.detail.headers["X-Fragment"] = "main";
    if (event.detail.elt !== main) return;
    if (shown.tag && shown.address === location.href) event.detail.headers["If-None-Match"] = shown.tag;
    event.detail.asked = location.href;
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt === main) waiting = true;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt !== main) return;
    waiting = false;
    const answer = event.detail.xhr;
    if (answer.status === 200 || answer.status === 304) {
      setReach(null);
      trouble.textContent = answer.getResponseHeader("Orchestrator-Warning") ?? "";
      trouble.hidden = trouble.textContent === "";
      shown = { address: location.href, tag: answer.getResponseHeader("ETag") ?? "" };
      const release = answer.getResponseHeader("X-Release");
      document.getElementById("outdated").hidden = !release || release === document.body.dataset.release;
    } else if (answer.status === 404) setReach("This no longer exists");
    else setReach(answer.status ? `The service answers with status ${answer.status}` : "The service is not reachable");
  });

  // --- boxes that stay scrolled to their end while they grow
  const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 8;
  let stuck = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target === main) stuck = [...main.querySelectorAll("[data-stick]")].filter(atEnd).map((box) => box.id);
  });
  const toEnd = (box) => {
    if (box) box.scrollTop = box.scrollHeight;
  };
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target !== main) return;
    for (const id of stuck) toEnd(document.getElementById(id));
    tellTimes();
    document.dispatchEvent(new CustomEvent("page:fresh"));
  });

  // --- actions
  const notice = document.getElementById("notice");
  const say = (text, bad) => {
    const box = document.createElement("div");
    box.className = bad ? "notice bad" : "notice";
    const line = document.createElement("p");
    line.textContent = text;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.dataset.dismiss = "";
    button.textContent = "Dismiss";
    box.append(line, button);
    notice.replaceChildren(box);
  };
  const problemOf = (answer) => {
    try {
      const problem = JSON.parse(answer.responseText);
      return `${problem.title}: ${problem.detail}`;
    } catch {
      return `The service answered ${answer.status} ${answer.statusText}.`;
    }
  };
  document.addEventListener("htmx:responseError", (event) => {
    if (event.detail.elt !== main) say(problemOf(event.detail.xhr), true);
  });
  for (const name of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, (event) => {
      if (event.detail.elt !== main) say("The service is not reachable, so nothing was changed. Try again.", true);
    });
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt === main || event.detail.requestConfig?.verb !== "post" || !event.detail.successful) return;
    for (const open of document.querySelectorAll("details.confirm[open]")) open.removeAttribute("open");
    for (const box of document.querySelectorAll("input[name=job]:checked")) box.checked = false;
    pollAnew();
  });

  // --- select all jobs of a page; without this script the checkbox stays hidden
  const boxes = () => [...main.querySelectorAll("input[name=job]")];
  const showAll = () => {
    const all = main.querySelector("[data-all]");
    if (!all) return;
    const ticked = boxes().filter((box) => box.checked).length;
    all.hidden = boxes().length === 0;
    all.checked = ticked > 0 && ticked === boxes().length;
    all.indeterminate = ticked > 0 && ticked < boxes().length;
    main.querySelector("#ask-cancel-chosen > summary").textContent = ticked > 1 ? `Cancel ${ticked} selected` : "Cancel selected";
    const compare = main.querySelector("#compare-chosen");
    compare.hidden = ticked < 2;
    compare.textContent = `Compare ${ticked} selected`;
  };
  document.addEventListener("click", (event) => {
    if (event.target.id !== "compare-chosen") return;
    const chosen = boxes().filter((box) => box.checked).map((box) => ["job", box.value]);
    location.href = `/compare?${new URLSearchParams(chosen)}`;
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-all]")) for (const box of boxes()) box.checked = event.target.checked;
    showAll();
  });
  document.addEventListener("page:fresh", showAll);
  showAll();

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  // --- clicks
  const copy = async (button) => {
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      document.getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (button.textContent = before), 2000);
  };
  document.addEventListener("click", (event) => {
    const target = event.target.closest?.("[data-dismiss], [data-copy], [data-event], a.rank, a.w, a.more[href='?']");
    for (const open of document.querySelectorAll("details.confirm[open]")) {
      if (!open.contains(event.target)) open.removeAttribute("open");
    }
    if (!target) return;
    if ("dismiss" in target.dataset) notice.replaceChildren();
    else if ("copy" in target.dataset) copy(target);
    else if ("event" in target.dataset) {
      const line = document.getElementById(`event-${target.dataset.event}`);
      line?.scrollIntoView({ block: "center" });
      line?.classList.add("shown");
    } else if (!event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      history.pushState(null, "", target.getAttribute("href") === "?" ? location.pathname : target.href);
      pollAnew();
    }
  });
  window.addEventListener("popstate", pollAnew);
  document.addEventListener("page:fresh", () => {
    if (location.hash === "#rank" && document.activeElement?.matches("a.rank, a.w")) {
      document.getElementById("rank")?.scrollIntoView({ block: "nearest" });
    }
  });

  // --- keyboard shortcuts
  const rows = () => [...main.querySelectorAll("a.row")];
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const line = document.activeElement?.closest?.("tr");
    const place = all.findIndex((row) => row.closest("tr") === line);
    all[Math.min(all.length - 1, Math.max(0, place < 0 ? 0 : place + by))].focus();
  };
  const keysButton = document.getElementById("keys");
  let keysOn = localStorage.getItem("keys") !== "off";
  const showKeys = () => {
    keysButton.textContent = keysOn ? "Shortcuts on" : "Shortcuts off";
    keysButton.setAttribute("aria-pressed", String(keysOn));
  };
  keysButton.addEventListener("click", () => {
    keysOn = !keysOn;
    localStorage.setItem("keys", keysOn ? "on" : "off");
    showKeys();
  });
  showKeys();
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      const open = document.querySelector("details.confirm[open]");
      open?.removeAttribute("open");
      open?.querySelector("summary").focus();
      return;
    }
    const types = event.target.matches?.("input:not([type=checkbox]), textarea, select");
    if (!keysOn || types || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      const search = document.getElementById("search");
      if (!search) return;
      event.preventDefault();
      search.focus();
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
  });

  // --- relative times, in the same format as show_ago of the server
  const ago = (moment) => {
    const passed = (Date.now() - moment) / 1000;
    if (passed < 5) return "just now";
    for (const [limit, size, unit] of [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"]]) {
      if (passed < limit) return `${Math.floor(passed / size)} ${unit} ago`;
    }
    return `${Math.floor(passed / 86400)} d ago`;
  };
  const tellTimes = () => {
    for (const time of main.querySelectorAll("time:not([data-clock])")) {
      const text = ago(Date.parse(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  };

  for (const box of main.querySelectorAll("[data-stick]")) toEnd(box);
  setInterval(tellTimes, 5000);
  if (periodMs) {
    setInterval(poll, periodMs);
    document.addEventListener("visibilitychange", poll);
  }
})();
