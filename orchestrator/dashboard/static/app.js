// Fetches the page's <main> again every few seconds and keeps what the reader had open, scrolled to or selected.
"use strict";

(() => {
  const main = document.querySelector("main[data-poll]");
  if (!main) return;
  const periodMs = Number(main.dataset.poll) * 1000;
  let shown = null;

  const isReading = () => {
    const selection = document.getSelection();
    const field = document.activeElement;
    const types = field && main.contains(field) && /^(INPUT|TEXTAREA|SELECT)$/.test(field.tagName);
    return types || (selection && !selection.isCollapsed && main.contains(selection.anchorNode));
  };

  const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 8;

  const toEnd = () => {
    for (const box of main.querySelectorAll("[data-stick]")) box.scrollTop = box.scrollHeight;
  };

  const remember = () => ({
    open: [...main.querySelectorAll("details[id][open]")].map((part) => part.id),
    boxes: [...main.querySelectorAll("pre[id], .wide")].map((box) => [box.scrollTop, box.scrollLeft, atEnd(box)]),
    focus: document.activeElement && main.contains(document.activeElement) ? document.activeElement.id : "",
    page: [window.scrollX, window.scrollY],
  });

  const restore = (kept) => {
    for (const id of kept.open) document.getElementById(id)?.setAttribute("open", "");
    [...main.querySelectorAll("pre[id], .wide")].forEach((box, index) => {
      const [top, left, end] = kept.boxes[index] ?? [0, 0, true];
      box.scrollTop = end && "stick" in box.dataset ? box.scrollHeight : top;
      box.scrollLeft = left;
    });
    if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
    window.scrollTo(...kept.page);
  };

  const refresh = async () => {
    if (!document.hidden && !isReading()) {
      try {
        const answer = await fetch(location.href, { headers: { "X-Fragment": "main" }, cache: "no-store" });
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        if (text !== shown && !isReading()) {
          const kept = remember();
          main.innerHTML = text; // escaped by the server
          restore(kept);
          shown = text;
        }
        document.body.classList.remove("offline");
      } catch {
        document.body.classList.add("offline");
      }
    }
    setTimeout(refresh, periodMs);
  };

  toEnd();
  setTimeout(refresh, periodMs);
})();
