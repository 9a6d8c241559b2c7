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
  "docs.errors": ["Error codes", "错误码"],
  "docs.code": ["Code, and code on /v1", "错误码（及其在 /v1 上的名称）"],
  "docs.statuses": ["Status: Fairlane API · /v1", "状态码：Fairlane 接口 · /v1"],
  "docs.retry": ["Retry", "可重试"],
  "docs.cause": ["Cause", "原因"],
  "docs.action": ["What to do", "处理方法"],
  "docs.yes": ["yes", "是"],
  "docs.no": ["no", "否"],
};
