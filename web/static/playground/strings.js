export default {
  en: { "playground.title": "Playground" },
  zh: { "playground.title": "试用" },
};
