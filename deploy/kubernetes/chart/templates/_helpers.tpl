{{- define "orchestrator.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "orchestrator.selector" -}}
app.kubernetes.io/name: orchestrator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "orchestrator.labels" -}}
{{ include "orchestrator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "orchestrator.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "orchestrator.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "orchestrator.name" .) -}}
{{- end -}}

{{- define "orchestrator.claim" -}}
{{- .Values.runs.existingClaim | default (printf "%s-runs" (include "orchestrator.name" .)) -}}
{{- end -}}

{{- define "orchestrator.scheme" -}}
{{- ternary "HTTPS" "HTTP" (ne .Values.tls.secret "") -}}
{{- end -}}

{{- define "orchestrator.url" -}}
{{ lower (include "orchestrator.scheme" .) }}://{{ include "orchestrator.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end -}}

{{/* What the service and its database upgrade share: who they are, where their settings are. */}}
{{- define "orchestrator.container" -}}
image: {{ include "orchestrator.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{ toJson .Values.resources }}
env:
  - {name: ORCHESTRATOR_CONFIG, value: /etc/orchestrator/orchestrator.toml}
  - {name: ORCHESTRATOR_HOST, value: "0.0.0.0"}
  - {name: ORCHESTRATOR_PORT, value: "8700"}
  - {name: ORCHESTRATOR_ROOT, value: /var/lib/orchestrator}
  - {name: ORCHESTRATOR_ADVERTISE_URL, value: {{ include "orchestrator.url" . | quote }}}
  - {name: HOME, value: /tmp}
  - name: ORCHESTRATOR_DATABASE_URL
    valueFrom: {secretKeyRef: {name: {{ .Values.database.secret }}, key: {{ .Values.database.key }}}}
  - name: ORCHESTRATOR_TOKEN
    valueFrom: {secretKeyRef: {name: {{ .Values.token.secret }}, key: {{ .Values.token.key }}}}
  - name: ORCHESTRATOR_SECRET_KEYS
    valueFrom: {secretKeyRef: {name: {{ .Values.secretKeys.secret }}, key: {{ .Values.secretKeys.key }}}}
  {{- if .Values.tls.secret }}
  - {name: ORCHESTRATOR_TLS_CERT, value: /etc/orchestrator-tls/tls.crt}
  - {name: ORCHESTRATOR_TLS_KEY, value: /etc/orchestrator-tls/tls.key}
  {{- end }}
  {{- range .Values.env }}
  - {name: {{ .name }}, value: {{ .value | quote }}}
  {{- end }}
  {{- range .Values.secretEnv }}
  - name: {{ .name }}
    valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
  {{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/orchestrator, readOnly: true}
  - {name: runs, mountPath: /var/lib/orchestrator}
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.tls.secret }}
  - {name: tls, mountPath: /etc/orchestrator-tls, readOnly: true}
  {{- end }}
{{- end -}}

{{/* The service answers to its loopback names whatever name a person calls it by. */}}
{{- define "orchestrator.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ include "orchestrator.scheme" .root }}
  httpHeaders: [{name: Host, value: localhost}]
timeoutSeconds: 5
{{- end -}}
