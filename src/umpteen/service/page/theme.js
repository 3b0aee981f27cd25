// Light or dark, before the first paint: the system's choice, unless the person took the other one.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function chosen() {
    try {
      return localStorage.getItem("umpteen.theme");
    } catch {
      return null; // storage is forbidden: the toggle holds until the page is left
    }
  }

  function dark() {
    return (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  }

  function choose(theme) {
    const asSystem = theme === (system.matches ? "dark" : "light");
    if (asSystem) delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      if (asSystem) localStorage.removeItem("umpteen.theme");
      else localStorage.setItem("umpteen.theme", theme);
    } catch {
      // see above
    }
  }

  if (["light", "dark"].includes(chosen())) root.dataset.theme = chosen();

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-pressed", String(dark()));
    button.addEventListener("click", () => {
      choose(dark() ? "light" : "dark");
      show();
    });
    system.addEventListener("change", show);
    show();
  });
})();
