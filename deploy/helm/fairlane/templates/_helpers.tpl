{{- define "fairlane.name" -}}
{{- if contains "fairlane" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-fairlane" (.Release.Name | trunc 31 | trimSuffix "-") }}{{- end -}}
{{- end }}

{{- define "fairlane.labels" -}}
app.kubernetes.io/name: fairlane
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "fairlane.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "fairlane.settingsSecret" -}}
{{ .Values.existingSettingsSecret | default (printf "%s-settings" (include "fairlane.name" .)) }}
{{- end }}

{{- define "fairlane.gatewaySelector" -}}
app.kubernetes.io/name: fairlane
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "fairlane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fairlane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
