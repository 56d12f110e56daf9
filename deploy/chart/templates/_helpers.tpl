{{- /* Of 46 characters: Kubernetes cuts a pod's name where its Deployment's is longer, and then it has not the form that KEDA asks for. */ -}}
{{- define "sentiment.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- .Values.fullnameOverride | default $name | trunc 46 | trimSuffix "-" }}
{{- end }}

{{- define "sentiment.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sentiment.loadtestLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-loadtest
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sentiment.resources" -}}
{{- range $name, $amount := .Values.resources }}
{{ $name }}: {{ $amount | quote }}
{{- end }}
{{- with .Values.gpu.resource }}
{{ . }}: {{ $.Values.gpu.count | quote }}
{{- end }}
{{- end }}

{{- define "sentiment.labels" -}}
{{ include "sentiment.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sentiment.metadata" -}}
name: {{ include "sentiment.name" . }}
namespace: {{ .Release.Namespace }}
labels: {{- include "sentiment.labels" . | nindent 2 }}
{{- end }}

{{- define "sentiment.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "sentiment.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sentiment.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* HTTP/2 over TLS is https too. */ -}}
{{- define "sentiment.appProtocol" -}}
{{- ternary "https" (last .) (not (empty (first .).Values.tls.secretName)) }}
{{- end }}

{{- /* The secret that Prometheus and the load test show, where they must. */ -}}
{{- define "sentiment.clientSecret" -}}
{{- if and .Values.tls.secretName (eq .Values.tls.clientAuth "require") }}
{{- required "tls.clientAuth is require: tls.clientSecretName must name what Prometheus and the load test show" .Values.tls.clientSecretName }}
{{- end }}
{{- end }}

{{- /* Whether there may be more than one pod. */ -}}
{{- define "sentiment.several" -}}
{{- if gt (int (ternary .Values.replicas .Values.autoscaling.max (eq .Values.autoscaling.kind "none"))) 1 }}yes{{ end }}
{{- end }}
