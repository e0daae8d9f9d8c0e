package main

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"
	"github.com/hashicorp/terraform-provider-google-beta/google-beta/fwprovider"
	google "github.com/hashicorp/terraform-provider-google-beta/google-beta/provider"
	pf "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/pf/tfbridge"
	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
	shim "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim"
	sdkv2 "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfshim/sdk-v2"
	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/x/muxer"
	"github.com/pulumi/pulumi-terraform-bridge/v3/unstable/metadata"
	"github.com/pulumi/pulumi/pkg/v3/resource/provider"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
)

const packageName = "gcp"

var projectVariables = []string{
	"GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT",
}

// providerInfo describes Google's provider to the bridge, the way pulumi-gcp 8.34.0 does for the
// resources in tokens.go.
func providerInfo(ctx context.Context, version string) tfbridge.ProviderInfo {
	sdkProvider := google.Provider()
	attributeToPulumi(sdkProvider)
	// A few functions, getClientConfig among them, live in the newer plugin framework.
	both := pf.MuxShimWithDisjointgPF(ctx,
		sdkv2.NewProvider(sdkProvider, sdkv2.WithPlanStateEdit(knownLabels)),
		fwprovider.New(sdkProvider))
	info := tfbridge.ProviderInfo{
		P:              both,
		Name:           packageName,
		ResourcePrefix: "google",
		Version:        version,
		MetadataInfo:   tfbridge.NewProviderMetadata(nil),
		Config: map[string]*tfbridge.SchemaInfo{
			"project": fromEnvironment(projectVariables...),
			"region": fromEnvironment(
				"GOOGLE_REGION", "GCLOUD_REGION", "CLOUDSDK_COMPUTE_REGION"),
			"zone":                            fromEnvironment("GOOGLE_ZONE", "GCLOUD_ZONE", "CLOUDSDK_COMPUTE_ZONE"),
			"access_token":                    {Secret: tfbridge.True()},
			"add_terraform_attribution_label": {Name: "addPulumiAttributionLabel"},
			"terraform_attribution_label_addition_strategy": {
				Name: "pulumiAttributionLabelAdditionStrategy",
			},
		},
		ExtraConfig: map[string]*tfbridge.ConfigInfo{
			// Accepted for the sake of programs that set it; this provider asks for no region list.
			"skipRegionValidation": flag("PULUMI_GCP_SKIP_REGION_VALIDATION"),
			"disableGlobalProjectWarning": flag(
				"PULUMI_GCP_DISABLE_GLOBAL_PROJECT_WARNING"),
		},
		PreConfigureCallbackWithLogger: warnWithoutProject,
		Resources:                      resources(both),
		DataSources:                    functions(both),
		IgnoreMappings:                 withoutToken(both),
		EnableZeroDefaultSchemaVersion: true,
		EnableAccurateBridgePreview:    true,
	}
	info.SetAutonaming(255, "-")
	dispatch(&info)
	return info
}

func resources(p shim.Provider) map[string]*tfbridge.ResourceInfo {
	infos := make(map[string]*tfbridge.ResourceInfo, len(resourceTokens))
	for name, short := range resourceTokens {
		info := &tfbridge.ResourceInfo{
			Tok:    tokens.Type(token(short)),
			Fields: fieldsOf(name),
		}
		attributes := p.ResourcesMap().Get(name).Schema()
		labelFields(attributes, info.Fields)
		if _, ok := info.Fields[managedLabels]; ok {
			info.TransformFromState = withPulumiLabels
		}
		infos[name] = info
	}
	// Two memberships that differ in one field are the same one to Google: create after delete.
	infos["google_project_iam_member"].DeleteBeforeReplace = true
	// A template cannot be changed; its name may clash unless one of these is unique.
	infos["google_compute_instance_template"].UniqueNameFields = []string{"name", "name-prefix"}
	infos["google_compute_router_nat"].TransformFromState = withEndpointTypes
	return infos
}

func functions(p shim.Provider) map[string]*tfbridge.DataSourceInfo {
	infos := make(map[string]*tfbridge.DataSourceInfo, len(functionTokens))
	for name, short := range functionTokens {
		info := &tfbridge.DataSourceInfo{
			Tok:    tokens.ModuleMember(token(short)),
			Fields: map[string]*tfbridge.SchemaInfo{},
		}
		labelFields(p.DataSourcesMap().Get(name).Schema(), info.Fields)
		infos[name] = info
	}
	return infos
}

// fieldsOf has the properties that pulumi-gcp treats specially: how a resource is named when the
// program does not name it, and what is given as a file.
func fieldsOf(name string) map[string]*tfbridge.SchemaInfo {
	switch name {
	case "google_storage_bucket":
		return named(tfbridge.AutoName("name", 222, "-"))
	case "google_storage_bucket_object":
		return map[string]*tfbridge.SchemaInfo{"source": {Asset: &tfbridge.AssetTranslation{
			Kind: tfbridge.FileAsset, Format: resource.ZIPArchive,
		}}}
	case "google_compute_network", "google_compute_subnetwork",
		"google_compute_router", "google_compute_router_nat":
		return named(tfbridge.AutoNameWithCustomOptions("name", tfbridge.AutoNameOptions{
			Separator: "-", Maxlen: 63, Randlen: 7, Transform: strings.ToLower,
		}))
	}
	return map[string]*tfbridge.SchemaInfo{}
}

func named(how *tfbridge.SchemaInfo) map[string]*tfbridge.SchemaInfo {
	return map[string]*tfbridge.SchemaInfo{"name": how}
}

// withEndpointTypes fills in what a gateway had before Google's provider knew the property.
func withEndpointTypes(
	_ context.Context, state resource.PropertyMap,
) (resource.PropertyMap, error) {
	if _, ok := state["endpointTypes"]; !ok {
		state["endpointTypes"] = resource.NewArrayProperty(
			[]resource.PropertyValue{resource.NewStringProperty("ENDPOINT_TYPE_VM")})
	}
	return state, nil
}

// withoutToken lists all that Google's provider has and tokens.go has not; without it the bridge
// would make up tokens for them. A name with a token in one of the two maps stays served there.
func withoutToken(p shim.Provider) []string {
	var names []string
	p.ResourcesMap().Range(func(name string, _ shim.Resource) bool {
		names = append(names, name)
		return true
	})
	p.DataSourcesMap().Range(func(name string, _ shim.Resource) bool {
		names = append(names, name)
		return true
	})
	return names
}

// dispatch records which of the two halves of Google's provider serves which token. pulumi-gcp
// computes that when its schema is generated; here it is cheap enough to do at each start.
func dispatch(info *tfbridge.ProviderInfo) {
	table, err := info.P.(interface {
		ResolveDispatch(*tfbridge.ProviderInfo) (muxer.DispatchTable, error)
	}).ResolveDispatch(info)
	if err != nil {
		panic(err)
	}
	if err := metadata.Set(info.GetMetadata(), "mux", table); err != nil {
		panic(err)
	}
}

func fromEnvironment(variables ...string) *tfbridge.SchemaInfo {
	return &tfbridge.SchemaInfo{Default: &tfbridge.DefaultInfo{EnvVars: variables}}
}

func flag(variable string) *tfbridge.ConfigInfo {
	return &tfbridge.ConfigInfo{
		Schema: sdkv2.NewSchema(&schema.Schema{Type: schema.TypeBool, Optional: true}),
		Info: &tfbridge.SchemaInfo{
			Default: &tfbridge.DefaultInfo{Value: false, EnvVars: []string{variable}},
		},
	}
}

func warnWithoutProject(
	ctx context.Context, _ *provider.HostClient, config resource.PropertyMap, _ shim.ResourceConfig,
) error {
	quiet := tfbridge.ConfigBoolValue(config, "disableGlobalProjectWarning",
		[]string{"PULUMI_GCP_DISABLE_GLOBAL_PROJECT_WARNING"})
	if !quiet && tfbridge.ConfigStringValue(config, "project", projectVariables) == "" {
		tfbridge.GetLogger(ctx).Warn("gcp:project is not set, so every resource must name its " +
			"project; `pulumi config set gcp:project <project>` sets it for all of them")
	}
	return nil
}
