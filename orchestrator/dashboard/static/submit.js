// Keeps the form and the YAML of a submission in sync. The service converts, validates and plans.
"use strict";

(() => {
  const form = document.getElementById("submit");
  const yaml = document.getElementById("yaml");
  const plan = document.getElementById("plan");
  const state = document.getElementById("draft-state");
  let timer = 0;
  let round = 0;

  const showKind = () => {
    const kind = form.elements.kind.value;
    for (const part of form.querySelectorAll("[data-kind]")) part.hidden = !part.dataset.kind.split(" ").includes(kind);
  };

  const draft = async (changed) => {
    const mine = ++round;
    state.textContent = "Updating the plan";
    const body = new URLSearchParams(new FormData(form));
    body.set("changed", changed);
    try {
      const answer = await fetch("/submit/draft", { method: "POST", body });
      const found = await answer.json();
      if (mine !== round) return; // the user has typed since
      if (!answer.ok) throw new Error(found.detail);
      plan.innerHTML = found.plan; // rendered and escaped by the service
      state.textContent = "";
      if (changed === "form" && found.yaml !== null) yaml.value = found.yaml;
      if (changed === "yaml" && found.fields !== null) {
        for (const [name, value] of Object.entries(found.fields)) {
          const field = form.elements[name];
          if (field && field !== document.activeElement) field.value = value;
        }
        showKind();
      }
    } catch (error) {
      if (mine !== round) return;
      state.textContent = "";
      plan.textContent = `The plan could not be computed: ${error.message}`;
    }
  };

  form.addEventListener("input", (event) => {
    clearTimeout(timer);
    const changed = event.target === yaml ? "yaml" : "form";
    if (event.target.name === "kind") showKind();
    timer = setTimeout(() => draft(changed), 350);
  });
  showKind();
})();
