// What the page of all calls says, in English and Chinese. What the document itself says is English.

export default {
  en: {
    "docs.title": "Calls",
    "docs.about": "Every call of this gateway, as its OpenAPI document describes it:",
    "docs.name": "Name",
    "docs.where": "Where",
    "docs.type": "Type",
    "docs.meaning": "Meaning",
    "docs.parameters": "Parameters",
    "docs.body": "Body",
    "docs.answers": "Answers",
    "docs.status": "Status",
    "docs.required": "required",
    "docs.error": "Error",
  },
  zh: {
    "docs.title": "接口",
    "docs.about": "本网关的全部接口，内容来自其 OpenAPI 文档：",
    "docs.name": "名称",
    "docs.where": "位置",
    "docs.type": "类型",
    "docs.meaning": "说明",
    "docs.parameters": "参数",
    "docs.body": "请求体",
    "docs.answers": "响应",
    "docs.status": "状态码",
    "docs.required": "必填",
    "docs.error": "错误",
  },
};
