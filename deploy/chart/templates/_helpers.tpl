{{- /* Of 46 characters: Kubernetes cuts a pod's name where its Deployment's is longer, and then it has not the form that KEDA asks for. */ -}}
{{- define "sentiment.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- .Values.fullnameOverride | default $name | trunc 46 | trimSuffix "-" }}
{{- end }}

{{- define "sentiment.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Of the pods of `helm test`. */ -}}
{{- define "sentiment.testLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-loadtest
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Requests or limits of the server: a list of the root, and of the amounts that differ from the limits. */ -}}
{{- define "sentiment.resources" -}}
{{- $root := first . }}
{{- range $name, $amount := merge (dict) (last . | default dict) $root.Values.resources }}
{{ $name }}: {{ $amount | quote }}
{{- end }}
{{- with $root.Values.gpu.resource }}
{{ . }}: {{ $root.Values.gpu.count | quote }}
{{- end }}
{{- end }}

{{- /* The number that a quantity such as 1536Mi or 500m means. */ -}}
{{- define "sentiment.quantity" -}}
{{- $factors := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mulf (regexFind "^[0-9.]+" .) (get $factors (regexFind "[A-Za-z]*$" .) | default 1) }}
{{- end }}

{{- define "sentiment.labels" -}}
{{ include "sentiment.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sentiment.metadata" -}}
{{ include "sentiment.metadataOf" (list . "") }}
{{- end }}

{{- /* Of the object whose name has this suffix. */ -}}
{{- define "sentiment.metadataOf" -}}
{{- $root := first . -}}
name: {{ include "sentiment.name" $root }}{{ last . }}
namespace: {{ $root.Release.Namespace }}
labels: {{- include "sentiment.labels" $root | nindent 2 }}
{{- end }}

{{- /* Families of the addresses of a Service. */ -}}
{{- define "sentiment.families" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
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

{{- /* The secret that Prometheus and `helm test` show, where they must. */ -}}
{{- define "sentiment.clientSecret" -}}
{{- if and .Values.tls.secretName (eq .Values.tls.clientAuth "require") }}
{{- required "tls.clientAuth is require: tls.clientSecretName must name what Prometheus and helm test show" .Values.tls.clientSecretName }}
{{- end }}
{{- end }}

{{- /* Whether there may be more than one pod. */ -}}
{{- define "sentiment.several" -}}
{{- if gt (int (ternary .Values.replicas .Values.autoscaling.max (eq .Values.autoscaling.kind "none"))) 1 }}yes{{ end }}
{{- end }}

{{- /* Whether a job of `helm test` can show what the server wants: a token goes to another pod over TLS only. */ -}}
{{- define "sentiment.callable" -}}
{{- if and (or .Values.tls.secretName (not .Values.auth.tokensSecretName)) (or (ne .Values.tls.clientAuth "require") .Values.tls.clientSecretName) }}yes{{ end }}
{{- end }}
