// Shows the page anew while somebody looks at it: fetches it every few seconds and takes over what is inside <main>.
"use strict";
(() => {
  const PERIOD_MS = 4000, main = document.getElementById("main"), bar = document.getElementById("live");
  const button = document.createElement("button"), note = document.createElement("span");
  if (!main.hasAttribute("data-live")) return;  // a message stays what it is, and what was found stays where it was
  let live = sessionStorage.getItem("live") !== "off", busy = false;

  const label = () => { button.textContent = live ? "Live" : "Paused"; button.setAttribute("aria-pressed", String(live)); };
  const inUse = () => document.hidden || busy || !live || main.querySelector("input:focus, select:focus")
    || String(document.getSelection()) !== "" || main.querySelector("form input:user-invalid");

  const shown = (page) => page.getElementById("live").classList.contains("failing") ? "this page shows an error " : "";
  const tell = (trouble) => { note.textContent = trouble; bar.classList.toggle("failing", trouble !== ""); };

  async function refresh() {
    if (inUse()) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(15000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html"), next = page.getElementById("main");
      // such as a proxy's page, or a log-in
      if (!next) throw new Error("no page of the console");
      if (!live) return;
      const scrolled = [...main.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      const focused = [...main.querySelectorAll("a, button, [tabindex]")].indexOf(document.activeElement);
      for (const field of main.querySelectorAll("input[name]")) {
        const same = next.querySelector(`form[action="${field.form.getAttribute("action")}"] [name="${field.name}"]`);
        if (same) { same.value = field.value; same.checked = field.checked; }
      }
      main.replaceChildren(...next.childNodes);
      main.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = scrolled[i] || 0; });
      if (focused >= 0) [...main.querySelectorAll("a, button, [tabindex]")][focused]?.focus({ preventScroll: true });
      tell(shown(page));
    } catch {
      tell("no answer: the page is old ");
    } finally {
      busy = false;
    }
  }

  button.type = "button";
  button.title = "Show new figures every few seconds";
  button.addEventListener("click", () => { live = !live; sessionStorage.setItem("live", live ? "on" : "off"); label(); refresh(); });
  label();
  note.setAttribute("role", "status");
  tell(shown(document));
  bar.append(note, button);
  setInterval(refresh, PERIOD_MS);
})();
