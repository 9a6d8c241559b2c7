// Runs before the first paint: the chosen colours and language, so that a page does not flash in others.
// A classic script in <head>; everything else is a module.
(() => {
  const read = name => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // storage is switched off
    }
  };
  const root = document.documentElement;
  const theme = read("fairlane.theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const language = read("fairlane.language") || navigator.language || "en";
  root.lang = language.toLowerCase().startsWith("zh") ? "zh" : "en";
})();
