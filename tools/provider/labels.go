package main

import (
	"context"

	"github.com/hashicorp/go-cty/cty"
	"github.com/hashicorp/terraform-plugin-sdk/v2/diag"
	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"
	transport "github.com/hashicorp/terraform-provider-google-beta/google-beta/transport"
	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
	shim "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim"
	sdkv2 "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim/sdk-v2"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
)

const (
	managedLabels   = "terraform_labels" // what the program and the provider's defaults say
	effectiveLabels = "effective_labels" // the above plus what others put there
)

// attributeToPulumi makes a resource say goog-pulumi-provisioned, as pulumi-gcp does, where
// Google's provider has the name goog-terraform-provisioned as a constant. A default label has the
// same effect on everything this provider creates.
func attributeToPulumi(google *schema.Provider) {
	configure := google.ConfigureContextFunc
	google.ConfigureContextFunc = func(
		ctx context.Context, data *schema.ResourceData,
	) (any, diag.Diagnostics) {
		meta, diags := configure(ctx, data)
		if config, ok := meta.(*transport.Config); ok && config.AddTerraformAttributionLabel {
			config.AddTerraformAttributionLabel = false
			config.DefaultLabels["goog-pulumi-provisioned"] = transport.AttributionValue
		}
		return meta, diags
	}
}

// labelFields renames terraform_labels to pulumiLabels and makes both computed maps secret: they
// repeat labels that the program may have given as secrets.
func labelFields(attributes shim.SchemaMap, fields map[string]*tfbridge.SchemaInfo) {
	if _, ok := attributes.GetOk(managedLabels); ok {
		fields[managedLabels] = &tfbridge.SchemaInfo{Name: "pulumiLabels", Secret: tfbridge.True()}
	}
	if _, ok := attributes.GetOk(effectiveLabels); ok {
		fields[effectiveLabels] = &tfbridge.SchemaInfo{Secret: tfbridge.True()}
	}
}

// withPulumiLabels adds an empty pulumiLabels to a state that lacks it; otherwise the map, computed
// by a custom diff, would show as a change for ever.
func withPulumiLabels(
	_ context.Context, state resource.PropertyMap,
) (resource.PropertyMap, error) {
	if _, ok := state["pulumiLabels"]; !ok {
		state["pulumiLabels"] = resource.NewObjectProperty(resource.PropertyMap{})
	}
	return state, nil
}

// knownLabels puts labels that the program gives back into a plan that takes them for unknown.
// Terraform's SDK does so with an empty value, and the label would show as a change for ever.
func knownLabels(_ context.Context, request sdkv2.PlanStateEditRequest) (cty.Value, error) {
	plan := request.PlanState.AsValueMap()
	for _, attribute := range []string{managedLabels, effectiveLabels} {
		planned, ok := plan[attribute]
		if !ok || !planned.IsKnown() || planned.IsNull() {
			continue
		}
		labels := planned.AsValueMap()
		for name, value := range labels {
			if value.IsKnown() {
				continue
			}
			if given, ok := givenLabel(request, resource.PropertyKey(name)); ok {
				labels[name] = cty.StringVal(given)
			}
		}
		if len(labels) > 0 {
			plan[attribute] = cty.MapVal(labels)
		}
	}
	return cty.ObjectVal(plan), nil
}

// givenLabel looks a label up among the resource's own, then among the provider's defaults.
func givenLabel(request sdkv2.PlanStateEditRequest, name resource.PropertyKey) (string, bool) {
	for _, labels := range []resource.PropertyValue{
		request.NewInputs["labels"], request.ProviderConfig["defaultLabels"],
	} {
		if labels.IsSecret() {
			labels = labels.SecretValue().Element
		}
		if !labels.IsObject() {
			continue
		}
		value := labels.ObjectValue()[name]
		if value.IsSecret() {
			value = value.SecretValue().Element
		}
		if value.IsString() {
			return value.StringValue(), true
		}
	}
	return "", false
}
