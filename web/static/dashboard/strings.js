export default {
  en: { "dashboard.title": "Dashboard" },
  zh: { "dashboard.title": "仪表盘" },
};
