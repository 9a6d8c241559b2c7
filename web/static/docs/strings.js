// Strings of the API page: [English, Chinese].

export default {
  "docs.title": ["API", "接口"],
  "docs.about": ["All calls of this gateway, from its OpenAPI document:", "本网关的全部接口，内容来自其 OpenAPI 文档："],
  "docs.name": ["Name", "名称"],
  "docs.where": ["In", "位置"],
  "docs.type": ["Type", "类型"],
  "docs.meaning": ["Description", "说明"],
  "docs.parameters": ["Parameters", "参数"],
  "docs.body": ["Body", "请求体"],
  "docs.answers": ["Responses", "响应"],
  "docs.status": ["Status", "状态码"],
  "docs.required": ["required", "必填"],
  "docs.error": ["Error", "错误"],
};
