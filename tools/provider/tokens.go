package main

import "strings"

// The resources and functions that this provider serves, by Terraform name; everything else that
// Google's provider has is ignored. The right side is "<module>/<Type>" exactly as the Python
// package pulumi-gcp 8.34.0 spells it: tests/unit/tools compares names, properties and all.
// To add one, add its line (sorted), rebuild with `python tools/install.py`, run those tests.

var resourceTokens = map[string]string{
	"google_billing_budget":                        "billing/Budget",
	"google_cloud_scheduler_job":                   "cloudscheduler/Job",
	"google_compute_address":                       "compute/Address",
	"google_compute_autoscaler":                    "compute/Autoscaler",
	"google_compute_disk":                          "compute/Disk",
	"google_compute_firewall":                      "compute/Firewall",
	"google_compute_global_address":                "compute/GlobalAddress",
	"google_compute_health_check":                  "compute/HealthCheck",
	"google_compute_instance":                      "compute/Instance",
	"google_compute_instance_group_manager":        "compute/InstanceGroupManager",
	"google_compute_instance_iam_member":           "compute/InstanceIAMMember",
	"google_compute_instance_template":             "compute/InstanceTemplate",
	"google_compute_network":                       "compute/Network",
	"google_compute_region_health_check":           "compute/RegionHealthCheck",
	"google_compute_region_instance_group_manager": "compute/RegionInstanceGroupManager",
	"google_compute_resource_policy":               "compute/ResourcePolicy",
	"google_compute_route":                         "compute/Route",
	"google_compute_router":                        "compute/Router",
	"google_compute_router_nat":                    "compute/RouterNat",
	"google_compute_snapshot":                      "compute/Snapshot",
	"google_compute_subnetwork":                    "compute/Subnetwork",
	"google_compute_subnetwork_iam_member":         "compute/SubnetworkIAMMember",
	"google_iam_workload_identity_pool":            "iam/WorkloadIdentityPool",
	"google_iam_workload_identity_pool_provider":   "iam/WorkloadIdentityPoolProvider",
	"google_kms_crypto_key":                        "kms/CryptoKey",
	"google_kms_crypto_key_iam_binding":            "kms/CryptoKeyIAMBinding",
	"google_kms_crypto_key_iam_member":             "kms/CryptoKeyIAMMember",
	"google_kms_key_ring":                          "kms/KeyRing",
	"google_kms_key_ring_iam_member":               "kms/KeyRingIAMMember",
	"google_logging_metric":                        "logging/Metric",
	"google_logging_project_sink":                  "logging/ProjectSink",
	"google_monitoring_alert_policy":               "monitoring/AlertPolicy",
	"google_monitoring_dashboard":                  "monitoring/Dashboard",
	"google_monitoring_notification_channel":       "monitoring/NotificationChannel",
	"google_project_iam_audit_config":              "projects/IAMAuditConfig",
	"google_project_iam_binding":                   "projects/IAMBinding",
	"google_project_iam_custom_role":               "projects/IAMCustomRole",
	"google_project_iam_member":                    "projects/IAMMember",
	"google_project_service":                       "projects/Service",
	"google_project_service_identity":              "projects/ServiceIdentity",
	"google_pubsub_subscription":                   "pubsub/Subscription",
	"google_pubsub_topic":                          "pubsub/Topic",
	"google_pubsub_topic_iam_binding":              "pubsub/TopicIAMBinding",
	"google_pubsub_topic_iam_member":               "pubsub/TopicIAMMember",
	"google_service_account":                       "serviceaccount/Account",
	"google_service_account_iam_binding":           "serviceaccount/IAMBinding",
	"google_service_account_iam_member":            "serviceaccount/IAMMember",
	"google_storage_bucket":                        "storage/Bucket",
	"google_storage_bucket_iam_binding":            "storage/BucketIAMBinding",
	"google_storage_bucket_iam_member":             "storage/BucketIAMMember",
	"google_storage_bucket_iam_policy":             "storage/BucketIAMPolicy",
	"google_storage_bucket_object":                 "storage/BucketObject",
	"google_storage_notification":                  "storage/Notification",
	"google_tpu_node":                              "tpu/Node",
	"google_tpu_v2_queued_resource":                "tpu/V2QueuedResource",
	"google_tpu_v2_vm":                             "tpu/V2Vm",
}

var functionTokens = map[string]string{
	"google_client_config":                   "organizations/getClientConfig",
	"google_compute_default_service_account": "compute/getDefaultServiceAccount",
	"google_compute_image":                   "compute/getImage",
	"google_compute_instance":                "compute/getInstance",
	"google_compute_instance_serial_port":    "compute/getInstanceSerialPort",
	"google_compute_network":                 "compute/getNetwork",
	"google_compute_subnetwork":              "compute/getSubnetwork",
	"google_compute_zones":                   "compute/getZones",
	"google_iam_policy":                      "organizations/getIAMPolicy",
	"google_kms_crypto_key":                  "kms/getKMSCryptoKey",
	"google_kms_key_ring":                    "kms/getKMSKeyRing",
	"google_project":                         "organizations/getProject",
	"google_service_account":                 "serviceaccount/getAccount",
	"google_storage_bucket":                  "storage/getBucket",
	"google_storage_bucket_object_content":   "storage/getBucketObjectContent",
	"google_storage_project_service_account": "storage/getProjectServiceAccount",
	"google_tpu_tensorflow_versions":         "tpu/getTensorflowVersions",
	"google_tpu_v2_accelerator_types":        "tpu/getV2AcceleratorTypes",
	"google_tpu_v2_runtime_versions":         "tpu/getV2RuntimeVersions",
}

// token spells "storage/Bucket" out as "gcp:storage/bucket:Bucket".
func token(short string) string {
	module, member, _ := strings.Cut(short, "/")
	return packageName + ":" + module + "/" + strings.ToLower(member[:1]) + member[1:] + ":" + member
}
