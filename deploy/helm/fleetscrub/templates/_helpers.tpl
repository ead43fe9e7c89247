{{/* Names and labels. Accounts and cluster-wide objects have fixed names: one installation a cluster. */}}
{{- define "fleetscrub.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "fleetscrub.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "fleetscrub.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fleetscrub.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fleetscrub.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fleetscrub.labels" -}}
{{ include "fleetscrub.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fleetscrub
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "fleetscrub.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The image of a container and when it is pulled. */}}
{{- define "fleetscrub.imageFields" -}}
image: {{ include "fleetscrub.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "fleetscrub.driver" -}}
{{- .Values.driver.name -}}
{{- end -}}

{{/* gpu.fleetscrub.dev -> fleetscrub.dev: the names of our other classes end with it. */}}
{{- define "fleetscrub.domain" -}}
{{- regexReplaceAll "^[^.]+\\." .Values.driver.name "" -}}
{{- end -}}

{{- define "fleetscrub.agentClass" -}}
agent.{{ include "fleetscrub.driver" . }}
{{- end -}}

{{- define "fleetscrub.kubeletRoot" -}}
{{- dir .Values.kubeletPlugin.kubeletPluginsDirectoryPath -}}
{{- end -}}

{{- define "fleetscrub.rayHead" -}}
{{ include "fleetscrub.fullname" . }}-ray-head
{{- end -}}

{{/* Head-less of KubeRay's own services, so that worker and campaign find it under one name. */}}
{{- define "fleetscrub.rayHeadHost" -}}
{{ include "fleetscrub.rayHead" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "fleetscrub.rayTokenSecret" -}}
{{- .Values.ray.auth.existingSecret | default (printf "%s-ray-token" (include "fleetscrub.fullname" .)) -}}
{{- end -}}

{{- define "fleetscrub.kuberay" -}}
{{- $asked := toString .Values.ray.kuberay.enabled -}}
{{- if or (eq $asked "true") (and (eq $asked "auto") (.Capabilities.APIVersions.Has "ray.io/v1")) -}}
true
{{- end -}}
{{- end -}}

{{/* What Ray's processes read from the environment. */}}
{{- define "fleetscrub.rayEnvironment" -}}
- {name: HOME, value: /tmp}
- {name: RAY_TMPDIR, value: /tmp}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN_PATH, value: /etc/fleetscrub-ray/token}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_GRAFANA_HOST, value: DISABLED}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "600"}
{{ include "fleetscrub.logEnvironment" . }}
{{- end -}}

{{/* Ray keeps what its processes log in files of its own: ours write it to this container's log as
     well. Kubernetes makes one $ of two, the shell its own process of the two that are left. */}}
{{- define "fleetscrub.rayStart" -}}
command:
- sh
- -c
- FLEET_LOG_ALSO=/proc/$$$$/fd/2 exec ray start "$@"
- ray
{{- end -}}

{{- define "fleetscrub.logEnvironment" -}}
- {name: FLEET_LOG_FORMAT, value: {{ .Values.logFormat }}}
{{- end -}}

{{- define "fleetscrub.podIp" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{- define "fleetscrub.nodeName" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end -}}

{{/* Ports of a raylet, fixed so that a NetworkPolicy can name them. */}}
{{- define "fleetscrub.rayletPorts" -}}
{{- with .Values.ray.ports -}}
- --object-manager-port={{ .objectManager }}
- --node-manager-port={{ .nodeManager }}
- --dashboard-agent-listen-port={{ .dashboardAgent }}
- --dashboard-agent-grpc-port={{ .dashboardAgentGrpc }}
- --runtime-env-agent-port={{ .runtimeEnvAgent }}
- --metrics-export-port={{ .metrics }}
- --min-worker-port={{ .workerMin }}
- --max-worker-port={{ .workerMax }}
{{- end -}}
{{- end -}}

{{/* What no container of ours has. */}}
{{- define "fleetscrub.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Pods that touch no host: an ordinary user, nothing to gain. */}}
{{- define "fleetscrub.plainPodSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Pull secrets, and where a pod may run. Called with (dict "root" $ "pod" .Values.<part>). */}}
{{- define "fleetscrub.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* The settings file: what was given, and over it what this chart decides. */}}
{{- define "fleetscrub.settings" -}}
{{- $given := deepCopy .Values.settings -}}
{{- $kubernetes := dict
  "driver" (include "fleetscrub.driver" .)
  "cdi_directory" .Values.kubeletPlugin.cdiDirectoryPath
  "kubelet_root" (include "fleetscrub.kubeletRoot" .)
  "cgroup_root" "/host/sys/fs/cgroup"
  "agent_namespace" .Release.Namespace -}}
{{- $hardware := dict "root" "/host" "run_directory" .Values.kubeletPlugin.runDirectoryPath -}}
{{- $store := dict "namespace" .Release.Namespace -}}
{{- $decided := dict "kubernetes" $kubernetes "hardware" $hardware "store" $store -}}
{{- with .Values.admission.tags.existingConfigMap -}}
{{- $admission := dict "tag_keys" (printf "/etc/fleetscrub-tags/%s" $.Values.admission.tags.key) -}}
{{- /* Whoever gives a list means it: without a tag nothing is prepared, unless it is said otherwise. */ -}}
{{- if not (hasKey ($.Values.settings.admission | default dict) "required") -}}
{{- $_ := set $admission "required" true -}}
{{- end -}}
{{- $_ := set $decided "admission" $admission -}}
{{- end -}}
{{- toPrettyJson (mergeOverwrite $given $decided) -}}
{{- end -}}

{{- define "fleetscrub.settingsDigest" -}}
checksum/settings: {{ include "fleetscrub.settings" . | sha256sum }}
{{- end -}}

{{/* What plugin and worker share of the host, under the host's own paths. */}}
{{- define "fleetscrub.hostVolumes" -}}
{{- $plugin := .Values.kubeletPlugin -}}
- {name: state, hostPath: {path: {{ $plugin.stateDirectoryPath }}, type: DirectoryOrCreate}}
- {name: run, hostPath: {path: {{ $plugin.runDirectoryPath }}, type: DirectoryOrCreate}}
- {name: machine-id, hostPath: {path: /etc/machine-id, type: File}}
- {name: cdi, hostPath: {path: {{ $plugin.cdiDirectoryPath }}, type: DirectoryOrCreate}}
- {name: kubelet, hostPath: {path: {{ include "fleetscrub.kubeletRoot" . }}, type: Directory}}
{{- if not .Values.simulate.enabled }}
- {name: host-sys, hostPath: {path: /sys, type: Directory}}
{{- range $number, $path := $plugin.driverDirectoryPaths }}
- {name: host-driver-{{ $number }}, hostPath: {path: {{ $path }}, type: Directory}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Mounts of whoever may own the node: Ray's worker, where the node actor runs, and the standby. */}}
{{- define "fleetscrub.ownerMounts" -}}
{{- $plugin := .Values.kubeletPlugin -}}
- {name: state, mountPath: {{ $plugin.stateDirectoryPath }}}
- {name: run, mountPath: {{ $plugin.runDirectoryPath }}}
- {name: machine-id, mountPath: /etc/machine-id, readOnly: true}
- {name: cdi, mountPath: {{ $plugin.cdiDirectoryPath }}}
- {name: kubelet, mountPath: {{ include "fleetscrub.kubeletRoot" . }}, readOnly: true}
- {name: host-cgroup, mountPath: /host/sys/fs/cgroup, readOnly: true, recursiveReadOnly: IfPossible}
{{- if not .Values.simulate.enabled }}
- {name: host-sys, mountPath: /host/sys, readOnly: true, recursiveReadOnly: IfPossible}
- {name: host-sys-devices, mountPath: /host/sys/devices}
- {name: host-sys-pci, mountPath: /host/sys/bus/pci}
- {name: host-proc, mountPath: /host/proc, readOnly: true, recursiveReadOnly: IfPossible}
- {name: run, mountPath: /host/run/fleetscrub}
{{- range $number, $path := $plugin.driverDirectoryPaths }}
- {name: host-driver-{{ $number }}, mountPath: /host{{ $path }}, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* The rights of the node's owner; why each is there is a table in docs/privilege.md. */}}
{{- define "fleetscrub.ownerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
appArmorProfile: {type: {{ .Values.worker.appArmorProfile }}}
capabilities:
  drop: [ALL]
  add: [CHECKPOINT_RESTORE, DAC_READ_SEARCH, SYSLOG, SYS_PTRACE]
{{- end -}}

{{- define "fleetscrub.ownerEnvironment" -}}
- {name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}
- {name: PATH, value: "/opt/fleetscrub/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/nvidia/bin"}
{{- end -}}
